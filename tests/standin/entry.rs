//! How calls enter: counted, failed on demand, and never unwinding into the caller.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::objects::World;

/// What the process has done, and what exists.
pub(crate) struct State {
    pub(crate) world: World,
    calls: BTreeMap<&'static str, u64>,
    fail: Option<(String, u64, u32)>,
    /// The code of a fault that every later call reports.
    fault: Option<u32>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

unsafe extern "C" {
    /// Registers a function for the end of the process (C11, 7.22.4.2).
    safe fn atexit(function: extern "C" fn()) -> i32;
}

/// The state, held until the call returns.
pub(crate) struct Held(MutexGuard<'static, Option<State>>);

impl Held {
    pub(crate) fn world(&mut self) -> &mut World {
        &mut self.0.get_or_insert_with(State::new).world
    }
}

impl State {
    fn new() -> Self {
        let fail = std::env::var("STANDIN_FAIL").ok().and_then(|wish| {
            let mut parts = wish.split(':');
            Some((parts.next()?.to_owned(), parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        });
        Self { world: World::default(), calls: BTreeMap::new(), fail, fault: None }
    }
}

/// Whether the stand-in shall act as a driver that does not do what it says.
pub(crate) fn lies_about(what: &str) -> bool {
    std::env::var("STANDIN_LIE").is_ok_and(|wish| wish == what)
}

/// Counts a call; gives the code that it shall fail with, if any.
pub(crate) fn enter(name: &'static str) -> (Held, Option<u32>) {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        atexit(report);
    });
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let inner = state.get_or_insert_with(State::new);
    let calls = inner.calls.entry(name).or_default();
    *calls += 1;
    let fail = inner.fail.as_ref().filter(|(call, nth, _)| call == name && nth == calls).map(|&(.., code)| code);
    if fail.is_some() && std::env::var_os("STANDIN_STICKY").is_some() {
        inner.fault = fail;
    }
    let is_spared = !name.starts_with("cu") || SPARED.iter().any(|prefix| name.starts_with(prefix));
    let fault = inner.fault.filter(|_| !is_spared);
    (Held(state), fail.or(fault))
}

/// Calls that a fault of device code leaves alone: they do not touch what the context holds.
const SPARED: [&str; 5] = ["cuInit", "cuDriver", "cuDevice", "cuCtx", "cublas"];

/// Writes what happened, one fact a line: `call NAME COUNT`, `violation TEXT`, `alive KIND COUNT`.
extern "C" fn report() {
    let Ok(path) = std::env::var("STANDIN_REPORT") else { return };
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(state) = state.as_ref() else { return };
    let mut text = String::new();
    for (name, count) in &state.calls {
        let _ = writeln!(text, "call {name} {count}");
    }
    for violation in &state.world.violations {
        let _ = writeln!(text, "violation {violation}");
    }
    for (kind, count) in state.world.alive() {
        let _ = writeln!(text, "alive {kind} {count}");
    }
    let _ = std::fs::write(path, text);
}

/// Defines exported functions. Each has the signature that the bindings declare, takes the state, and gives a `Result` whose error
/// is returned; `release` functions do their work even where they are told to fail.
macro_rules! exports {
    ($bindings:ident, $result:ident, $of_code:path, $success:expr;
        $($(#[$kind:ident])? fn $name:ident($held:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        const _: unsafe fn($($type),*) -> $result = $bindings::$name;

        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> $result {
            let (mut held, fail) = $crate::entry::enter(stringify!($name));
            let release = exports!(@release $($kind)?);
            if let (Some(code), false) = (fail, release) {
                return $of_code(code);
            }
            #[allow(clippy::too_many_arguments, reason = "the libraries' own signatures")]
            fn body($held: &mut $crate::objects::World $(, $arg: $type)*) -> Result<(), $result> $body
            match (body(held.world() $(, $arg)*), fail) {
                (_, Some(code)) => $of_code(code),
                (Ok(()), None) => $success,
                (Err(code), None) => code,
            }
        }
    )*};
    (@release) => { false };
    (@release release) => { true };
}

/// Writes a result to the caller's place.
pub(crate) fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller is this project's driver layer, which passes places of its own that outlive the call.
        unsafe { place.write(value) };
    }
}

/// Reads a value of the caller's.
pub(crate) fn get<T: Copy>(place: *const T) -> T {
    // SAFETY: as in `put`; callers of this function pass places that are never null.
    unsafe { place.read_unaligned() }
}

/// Reads an array of the caller's.
pub(crate) fn list<T: Copy>(first: *const T, count: usize) -> Vec<T> {
    (0..count).map(|at| get(first.wrapping_add(at))).collect()
}

/// Reads a string of the caller's.
pub(crate) fn text(first: *const std::ffi::c_char) -> String {
    // SAFETY: as in `put`; the caller's strings end with a zero byte.
    unsafe { std::ffi::CStr::from_ptr(first) }.to_string_lossy().into_owned()
}
