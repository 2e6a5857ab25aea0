//! Wrong specs: each file under `tests/invalid` breaks one rule, and says on the guilty line what must be reported.
//!
//! `# error: TEXT` stands on the guilty line, `# error-below: TEXT` on the line before it. A message of that line must contain
//! the text, and no message may stand on a line that announces none.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use stepgraph::spec::{self, SpecErrors, SpecOptions};

/// What a file announces: lines, counted from 1, and texts.
fn announced(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        if let Some((_, expected)) = content.split_once("# error: ") {
            found.push((line, expected.trim()));
        } else if let Some((_, expected)) = content.split_once("# error-below: ") {
            found.push((line + 1, expected.trim()));
        }
    }
    found
}

fn errors_of(path: &Path) -> Option<SpecErrors> {
    spec::read(path, &SpecOptions::default()).and_then(spec::ParsedSpec::validate).err()
}

/// What is wrong with the errors of one file, in words.
fn complaints(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a readable file");
    let expected = announced(&text);
    if expected.is_empty() {
        return vec!["announces no error".into()];
    }
    let Some(errors) = errors_of(path) else { return vec!["is accepted".into()] };
    let found: Vec<_> =
        errors.errors.iter().map(|labelled| (errors.line(labelled.span.start), labelled.message())).collect();
    let missing = expected
        .iter()
        .filter(|(line, text)| !found.iter().any(|(at, message)| at == line && message.contains(text)))
        .map(|(line, text)| format!("line {line}: no error says `{text}`"));
    let unexpected = found
        .iter()
        .filter(|(line, _)| !expected.iter().any(|(at, _)| at == line))
        .map(|(line, message)| format!("line {line}: unexpected `{message}`"));
    let all = || found.iter().map(|(line, message)| format!("    line {line}: {message}"));
    let mut complaints: Vec<_> = missing.chain(unexpected).collect();
    if !complaints.is_empty() {
        complaints.extend(all());
    }
    complaints
}

/// Protects: every rule of specs and programs that a spec can break is reported in words, on the line that breaks it.
#[test]
fn invalid_specs_are_reported_on_the_guilty_line() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/invalid");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    assert!(files.len() >= 45, "only {} files", files.len());
    let mut wrong = Vec::new();
    for path in &files {
        let complaints = complaints(path);
        if !complaints.is_empty() {
            wrong.push(format!("{}\n  {}", path.display(), complaints.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), files.len(), wrong.join("\n"));
}

/// Protects: independent errors are reported together, and what a wrong declaration leads to is not.
#[test]
fn errors_are_collected_without_consequences() {
    let text = "program = \"t\"\n[input]\nx = [0]\ny = [4]\n[s.p]\na = { map = \"x + 1.0\" }\nb = { map = \"a + y\" }\n\
                c = { map = \"y +\" }\nd = { map = \"nowhere\" }\n";
    let errors = spec::parse(text, &SpecOptions::default()).expect_err("wrong");
    let lines: Vec<_> = errors.errors.iter().map(|labelled| errors.line(labelled.span.start)).collect();
    assert_eq!(lines, [3, 8, 9], "{errors}");
}

/// Protects: an error's bytes are the guilty text itself, not the line or the node.
#[test]
fn spans_are_the_guilty_text() {
    let text = "program = \"t\"\n[input]\nx = [4, 2]\n[s.p]\na = { map = \"exp(x) * nowhere + x[:, 3:1]\" }\n";
    let errors = spec::parse(text, &SpecOptions::default()).expect_err("wrong");
    let guilty: Vec<_> = errors.errors.iter().map(|labelled| &text[labelled.span.clone()]).collect();
    assert_eq!(guilty, ["nowhere", "3:1"], "{errors}");
}

/// Protects: a dimension set from outside must exist, and takes part in the arithmetic.
#[test]
fn dimensions_can_be_set_from_outside() {
    let text = "program = \"t\"\ndims = { B = 4, C = \"2*B\" }\n[input]\nx = [\"C\"]\n[s.p]\ny = { map = \"x / B\" }\n";
    let set = |name: &str, value| {
        let options = SpecOptions { dims: [(name.to_owned(), value)].into(), ..SpecOptions::default() };
        spec::parse(text, &options)
    };
    let parsed = set("B", 8).expect("valid");
    assert_eq!(parsed.program.buffers.values().next().expect("x").shape.dims(), [16]);
    assert!(set("D", 8).expect_err("unknown").to_string().contains("no dimension `D`"));
    assert!(set("B", 0).expect_err("zero").to_string().contains("must be between 1"));
    assert!(set("B", 1 << 40).expect_err("huge").to_string().contains("must be between 1"));
}

/// Protects: a file that is missing or no text is an error with a reason.
#[test]
fn unreadable_files_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("binary.toml");
    std::fs::write(&path, b"program = \"\xff\"").expect("written");
    assert!(errors_of(&path).expect("wrong").to_string().contains("byte 11 is no part of a character"));
    assert!(errors_of(&folder.path().join("absent.toml")).expect("wrong").to_string().contains("cannot read"));
}

/// Every construct once, small.
const SMALL: &str = r#"program = "t"
dims = { B = 4, V = 2 }
[scalar]
lr = 0.1
t = { type = "u32", writer = "device" }
[input]
x = ["2*B", 3]
idx = { shape = [4], type = "i32" }
[param]
l = { w = { shape = [3, 3], init = { normal = 0.1 } }, b = [3] }
[group]
g = ["l.w", "l.b"]
m = { like = "g", role = "state" }
[train]
variants = ["a", "b"]
[[train.f]]
variants = ["a"]
h = { gemm = "x @ l.w'", then = "let s = acc + l.b; relu(s) * s" }
p = { map = "h[idx[i0], i1] + uniform(t, 1u, 2)", over = [4, 3] }
[train.g]
r = { reduce = "x[0:4, :] * 2", by = "sum", axes = [1], finish = "acc / V", after = "c" }
c = { copy = "x[1]" }
z = { fill = 0, out = "l.b[0:1]" }
w = { while = 3, body = { q = { map = "l.w", out = "l.w" } } }
t = { map = "t + 1" }
"#;

/// Protects: the small spec of the tests below is read in full, so that cutting it reaches every rule.
#[test]
fn the_small_spec_is_valid() {
    let parsed = spec::parse(SMALL, &SpecOptions::default());
    assert!(parsed.is_ok(), "{}", parsed.expect_err("wrong"));
}

/// Protects: a truncated file is an error or a smaller program, never a panic.
#[test]
fn truncated_specs_never_panic() {
    for end in 0..SMALL.len() {
        let parsed = spec::parse(&SMALL[..end], &SpecOptions::default());
        if let Ok(parsed) = parsed {
            drop(parsed.validate());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Protects: no text at all makes the reader panic.
    #[test]
    fn random_texts_never_panic(text in "\\PC{0,200}") {
        drop(spec::parse(&text, &SpecOptions::default()));
    }

    /// Protects: no expression at all makes the reader panic.
    #[test]
    fn random_expressions_never_panic(expr in "[xlwbit0-9a-c+*/%<>=!&|^@:;,.'()\\[\\] -]{0,40}") {
        let text = format!("program = \"t\"\n[input]\nx = [4, 3]\n[s.p]\ny = {{ map = \"{expr}\" }}\nz = {{ gemm = \"{expr}\" }}");
        if let Ok(parsed) = spec::parse(&text, &SpecOptions::default()) {
            drop(parsed.validate());
        }
    }

    /// Protects: no damage to a valid spec makes the reader or validation panic.
    #[test]
    fn damaged_specs_never_panic(damage in proptest::collection::vec((any::<prop::sample::Index>(), "[ -~]{0,3}", 0..4usize), 1..4)) {
        let mut text = SMALL.to_owned();
        for (place, insert, remove) in damage {
            let at = place.index(text.len());
            let end = (at + remove).min(text.len());
            text.replace_range(at..end, &insert);
        }
        if let Ok(parsed) = spec::parse(&text, &SpecOptions::default()) {
            drop(parsed.validate());
        }
    }
}
