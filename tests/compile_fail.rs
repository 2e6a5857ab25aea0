//! What must not compile: every misuse of a kernel's arguments that types can exclude.

/// Protects: a wrong dtype, a wrong class, a missing argument, a bare number, and a kernel without a launch clause are build
/// errors, not run-time surprises.
#[test]
fn misused_kernel_arguments_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile_fail/right.rs");
    cases.compile_fail("tests/compile_fail/wrong_*.rs");
}
