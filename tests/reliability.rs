//! `docs/reliability.md` names a test for every way in which users of CUDA graphs get hurt; here those tests are looked up.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use stepgraph::runtime::{Session, Ticket};

/// Rows of the table.
const CLASSES: usize = 21;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document() -> String {
    fs::read_to_string(root().join("docs/reliability.md")).expect("the document is there")
}

fn rust_files(folder: PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            found.extend(rust_files(path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The names of functions that carry `#[test]` and are not only helpers of others (`#[ignore]`).
fn tests_in(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("fn ") {
            Some(rest) => {
                if is_test && !is_ignored {
                    found.extend(rest.split(['(', '<']).next());
                }
                (is_test, is_ignored) = (false, false);
            }
            None if line == "#[test]" => is_test = true,
            None => is_ignored |= line.starts_with("#[ignore"),
        }
    }
    found
}

fn all_tests() -> BTreeSet<String> {
    let files = ["src", "tests"].into_iter().flat_map(|folder| rust_files(root().join(folder)));
    let texts: Vec<_> = files.map(|path| fs::read_to_string(path).expect("UTF-8")).collect();
    texts.iter().flat_map(|text| tests_in(text)).map(str::to_owned).collect()
}

/// The words in backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The cells of each row of the first table, without its head.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    lines.skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Protects: each class of failure says what protects the user and has a test, and every test that the document names exists.
#[test]
fn every_failure_class_has_a_test() {
    let (text, known) = (document(), all_tests());
    assert!(known.len() > 300, "the tests were not found: {}", known.len());
    let rows = rows(&text);
    assert_eq!(rows.len(), CLASSES, "a class is new or gone: change both");
    let mut missing = Vec::new();
    for row in &rows {
        let [wrong, answer, tests] = row[..] else { panic!("a row has three cells: {row:?}") };
        assert!(!wrong.is_empty() && !answer.is_empty(), "{row:?}");
        let kinds = ["type", "build error", "run-time check", "design"];
        assert!(kinds.iter().any(|kind| answer.contains(kind)), "`{wrong}` does not say when it is caught");
        assert!(!quoted(tests).is_empty(), "`{wrong}` has no test");
        missing.extend(quoted(tests).into_iter().filter(|test| !known.contains(*test)));
    }
    let listed = text.lines().filter(|line| line.starts_with("Tests: "));
    missing.extend(listed.flat_map(quoted).filter(|test| !known.contains(*test)));
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

/// Protects: the reader of tests and tables that the test above stands on.
#[test]
fn names_and_rows_are_read() {
    let text = "#[test]\nfn one() {}\nfn helper() {}\n#[test]\n#[ignore = \"not\"]\nfn two() {}\n/// x\n#[test]\nfn three<T>() {}";
    assert_eq!(tests_in(text), ["one", "three"]);
    assert_eq!(quoted("`a`, `b` and c"), ["a", "b"]);
    assert_eq!(rows("text\n| h | i |\n| --- | --- |\n| a | `b` |\n\n| other |"), [["a", "`b`"]]);
}

/// Protects: an executable is launched by one thread at a time: a session cannot be shared, and launching takes it mutably.
#[test]
fn a_session_cannot_be_shared_between_threads() {
    /// Has one answer for types that are not `Sync`; for others the call below is ambiguous and does not compile.
    trait Unshared<A> {
        fn is_unshared() -> bool {
            true
        }
    }
    struct Shared;
    impl<T> Unshared<()> for T {}
    impl<T: Sync> Unshared<Shared> for T {}
    assert!(<Session as Unshared<_>>::is_unshared());
    // The type says that a launch has the session to itself.
    let _: fn(&mut Session, &str) -> Result<Ticket, stepgraph::runtime::RuntimeError> = Session::launch;
}
