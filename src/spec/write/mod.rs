//! Canonical specs: one text per program, the same bytes every time.
//!
//! Reading a canonical spec gives the program back, provided that the program lists its kernels in the order of their first
//! call and its nodes in the order of their text, as the Rust API and the reader do. Dimensions and comments are not part
//! of a program, so they are not written.

mod expr;
mod implied;
mod kernels;
mod memory;
mod nodes;
mod toml;

use std::fmt::Write as _;

use crate::ir::Program;
use implied::Implied;

/// The program as a canonical spec. Kernels of the library stand by name; others name their `.cu` file.
pub fn write(program: &Program) -> String {
    let implied = Implied::of(program);
    let mut text = String::new();
    line(&mut text, format_args!("program = {}", toml::quoted(&program.name)));
    memory::write(&mut text, program, &implied);
    kernels::write(&mut text, program);
    nodes::write(&mut text, program, &implied);
    text
}

/// Adds a line. Writing to a text cannot fail.
fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    let written = writeln!(text, "{content}");
    debug_assert!(written.is_ok());
}
