//! Typed handles: how Rust code names the parts of a program that it builds.
//!
//! A handle is `Copy` and remembers which program made it; a foreign one is an error when the program is built.

use std::marker::PhantomData;

pub use crate::entity::ProgramTag;
use crate::entity::{GroupId, ScalarId};
use crate::ir::{Element, ScalarElement, View};

/// What a [`Tensor`] names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// A box of a buffer.
    View(View),
    /// A whole group, as one flat array.
    Group(GroupId),
}

/// Device memory with elements of type `T`: a buffer, a box of one, or a group of them.
#[derive(Debug, PartialEq)]
pub struct Tensor<T: Element> {
    /// The program that declared it.
    pub tag: ProgramTag,
    /// What it names.
    pub place: Place,
    element: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// A handle of `tag`'s program for a place whose elements are `T`.
    pub const fn new(tag: ProgramTag, place: Place) -> Self {
        Self { tag, place, element: PhantomData }
    }
}

impl<T: Element> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element> Copy for Tensor<T> {}

/// A device-resident cell of type `T`, written by the host or by nodes.
#[derive(Debug, PartialEq)]
pub struct Scalar<T: ScalarElement> {
    /// The program that declared it.
    pub tag: ProgramTag,
    /// The cell.
    pub id: ScalarId,
    element: PhantomData<T>,
}

impl<T: ScalarElement> Scalar<T> {
    /// A handle of `tag`'s program for a cell of type `T`.
    pub const fn new(tag: ProgramTag, id: ScalarId) -> Self {
        Self { tag, id, element: PhantomData }
    }
}

impl<T: ScalarElement> Clone for Scalar<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ScalarElement> Copy for Scalar<T> {}

/// A value that is baked into a node: it can never change without planning anew. The word is the warning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Const<T>(pub T);
