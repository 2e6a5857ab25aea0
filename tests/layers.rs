//! The shape of the source tree: imports go downwards, `unsafe` stays in the driver layer, files stay readable, the library prints nothing.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules from top to bottom; a module may use those behind it.
const ORDER: [&str; 21] = [
    "main", "cli", "lib", "compile", "bench", "runtime", "host", "emit", "plan", "codegen", "pass", "valid", "spec",
    "builder", "kernel", "handle", "analysis", "ir", "entity", "file", "cuda",
];
/// The modules that may use `cuda`, which stands outside the order.
const DRIVER_USERS: [&str; 3] = ["emit", "runtime", "cuda"];
/// Lines of the longest file.
const MAX_LINES: usize = 600;
/// Modules that are the command line: they print, and use the library by its name.
const COMMAND_LINE: [&str; 2] = ["main", "cli"];

/// Files that call a crate which has no safe entry, each in one block behind checks of every extent.
const FOREIGN_CALLS: [&str; 1] = ["host/gemm.rs"];

struct Source {
    path: PathBuf,
    /// The top-level module that the file belongs to.
    module: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable source tree") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let inside = path.strip_prefix(&root).expect("below src");
                let first = inside.components().next().expect("a file name").as_os_str().to_string_lossy();
                let module = first.trim_end_matches(".rs").to_owned();
                let text = fs::read_to_string(&path).expect("UTF-8");
                found.push(Source { path: inside.to_owned(), module, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "the source tree was not found");
    found
}

impl Source {
    /// Whether the whole file is test code: it is named so.
    fn is_test(&self) -> bool {
        self.path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")))
    }

    /// The lines of product code, numbered from 1, without comments: test modules stand last in their files.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
        let lines = (1..).zip(lines).filter(|_| !self.is_test());
        lines.map(|(number, line)| (number, line.split("//").next().unwrap_or_default()))
    }
}

fn rank(module: &str) -> usize {
    ORDER.iter().position(|name| *name == module).unwrap_or_else(|| panic!("`{module}` is not in the module order"))
}

/// The modules that a line names behind `crate::` (also `crate::{a, b}`).
fn named(line: &str) -> Vec<&str> {
    let word = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let mut found = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let is_macro_path = line[..at].ends_with('$');
        let rest = &line[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            _ if is_macro_path => {}
            Some(list) => found.extend(list.split(',').map(|item| &item.trim()[..word(item.trim())])),
            None => found.push(&rest[..word(rest)]),
        }
    }
    found.retain(|name| !name.is_empty() && *name != "self");
    found
}

/// Protects: each stage knows only the stages below it, so that it can be read, tested and replaced by itself.
#[test]
fn imports_go_downwards() {
    let mut wrong = Vec::new();
    for source in sources() {
        let own = rank(&source.module);
        for (number, line) in source.code() {
            for used in named(line).into_iter().filter(|used| ORDER.contains(used)) {
                let is_allowed = match used {
                    "cuda" => DRIVER_USERS.contains(&source.module.as_str()),
                    _ if source.module == "cuda" => false,
                    used => rank(used) >= own,
                };
                if !is_allowed {
                    wrong.push(format!("{}:{number}: {} uses {used}", source.path.display(), source.module));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Protects: the check of plans proves order and memory by itself; an error of the planner's analysis would be shared otherwise.
#[test]
fn the_check_does_not_trust_the_analysis() {
    let sources = sources();
    let check: Vec<_> = sources.iter().filter(|source| source.path.starts_with("plan/check")).collect();
    assert!(!check.is_empty(), "the check has moved");
    for source in check {
        let uses = source.code().filter(|(_, line)| named(line).contains(&"analysis"));
        let wrong: Vec<_> = uses.filter(|(_, line)| line.trim() != "use crate::analysis::Varying;").collect();
        assert!(wrong.is_empty(), "{}: {wrong:?}", source.path.display());
    }
}

/// Protects: the order lists the modules that exist, so that a new one gets a place.
#[test]
fn the_order_is_complete() {
    let sources = sources();
    sources.iter().for_each(|source| {
        rank(&source.module);
    });
    let gone: Vec<_> = ORDER.iter().filter(|name| !sources.iter().any(|source| source.module == **name)).collect();
    assert!(gone.is_empty() || gone == [&"cli"], "{gone:?} are in the order but not in the tree");
}

/// Protects: every line that can break memory safety is in one folder, where it is read with that in mind.
#[test]
fn unsafe_code_is_in_the_driver_layer() {
    let elsewhere =
        |source: &&Source| source.module != "cuda" && !FOREIGN_CALLS.iter().any(|file| source.path == Path::new(file));
    for source in sources().iter().filter(elsewhere) {
        for (number, line) in source.code() {
            let is_unsafe = line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
            assert!(!is_unsafe, "{}:{number}: unsafe outside src/cuda", source.path.display());
        }
    }
}

/// Protects: a file can be read in one sitting.
#[test]
fn files_are_short() {
    let long = sources().into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > MAX_LINES).then(|| format!("{}: {lines} lines", source.path.display()))
    });
    let long: Vec<_> = long.collect();
    assert!(long.is_empty(), "longer than {MAX_LINES} lines:\n{}", long.join("\n"));
}

/// Protects: a library that others embed does not write to their terminal.
#[test]
fn the_library_prints_nothing() {
    for source in sources().iter().filter(|source| !COMMAND_LINE.contains(&source.module.as_str())) {
        for (number, line) in source.code() {
            for printing in ["println!", "print!(", "eprint", "dbg!"] {
                assert!(!line.contains(printing), "{}:{number}: {printing}", source.path.display());
            }
        }
    }
}

/// Protects: the reader of paths that the other tests stand on.
#[test]
fn paths_are_read() {
    assert_eq!(named("use crate::plan::{A, B};"), ["plan"]);
    assert_eq!(named("use crate::{ir, plan::Unit};"), ["ir", "plan"]);
    assert_eq!(named("let x: crate::ir::Shape = crate::valid::f();"), ["ir", "valid"]);
    assert_eq!(named("$crate::ir::Shape"), [""; 0]);
}
