//! The command line from outside: what it prints, where, and its exit codes.

use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use tempfile::TempDir;

const SPEC: &str = r#"program = "sums"
dims = { B = 4 }
[scalar]
rate = { init = 0.5, writer = "host" }
t = { type = "u32", writer = "device" }
[input]
x = ["B"]
[state]
sum = ["B"]
[output]
total = []
[add.main]
sum = { map = "sum + rate * x" }
t = { map = "t + 1" }
total = { reduce = "sum", by = "sum" }
[clear.main]
zero = { fill = 0.0, out = "sum" }
"#;

struct Done {
    code: i32,
    out: String,
    err: String,
}

/// Runs the command in a folder.
fn stepgraph(folder: &Path, args: &[&str]) -> Done {
    let output = Command::new(env!("CARGO_BIN_EXE_stepgraph"))
        .args(args)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .env_remove("RUST_LOG")
        .output()
        .expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Done { code: output.status.code().expect("an exit code"), out: text(output.stdout), err: text(output.stderr) }
}

/// A folder with the spec, and `inputs.safetensors` with this `x`.
fn folder(x: &[f32]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("sums.toml"), SPEC).expect("written");
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let rate = 2.0f32.to_le_bytes();
    let tensors = [
        ("x", TensorView::new(Dtype::F32, vec![x.len()], &bytes).expect("a view")),
        ("rate", TensorView::new(Dtype::F32, vec![1], &rate).expect("a view")),
    ];
    std::fs::write(folder.path().join("inputs.safetensors"), serialize(tensors, None).expect("bytes"))
        .expect("written");
    folder
}

fn floats(file: &Path, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(file).expect("a file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let data = file.tensor(name).expect("the tensor").data();
    data.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

/// Protects: a right program is summed up; a wrong one is shown where it is wrong, with exit code 1 and nothing on standard
/// output.
#[test]
fn check_underlines_the_guilty_text() {
    let folder = folder(&[]);
    let right = stepgraph(folder.path(), &["check", "sums.toml"]);
    assert_eq!((right.code, right.err.as_str()), (0, ""), "{}", right.err);
    assert!(right.out.contains("program `sums` is valid"), "{}", right.out);
    std::fs::write(folder.path().join("wrong.toml"), SPEC.replace("rate * x", "rat * y")).expect("written");
    let wrong = stepgraph(folder.path(), &["check", "wrong.toml"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (1, ""));
    for text in
        ["wrong.toml:13:22", "no buffer or scalar `rat`; did you mean `rate`?", "no buffer or scalar `y`", "2 errors"]
    {
        assert!(wrong.err.contains(text), "{text}: {}", wrong.err);
    }
}

/// Protects: what cannot be planned is shown where it is written, by every command that plans.
#[test]
fn planning_errors_underline_the_node() {
    let folder = folder(&[]);
    std::fs::write(folder.path().join("fed.toml"), SPEC).expect("written");
    for command in ["lower", "run", "bench"] {
        let plans = if command == "bench" { ["--plans", "mega"] } else { ["--plan", "mega"] };
        let args = [&[command, "fed.toml", "--step", "add", "--loop", "2"][..], &plans].concat();
        let done = stepgraph(folder.path(), &args);
        assert_eq!((done.code, done.out.as_str()), (1, ""), "{}", done.err);
        for text in ["reads the", "same part of the input", "[fed.toml:13:1]", "sum = { map", "───"] {
            assert!(done.err.contains(text), "{text}: {}", done.err);
        }
    }
    let kernel = "extern \"C\" __global__ void wide(float* __restrict__ y) {}";
    std::fs::write(folder.path().join("wide.cu"), kernel).expect("written");
    let launch = "launch = { grid = [1, 1, 1], block = [2048, 1, 1] }";
    let spec = format!(
        "program = \"wide\"\nstate = {{ y = [4] }}\n[kernel.wide]\nfile = \"wide.cu\"\nparams = {{ y = \"Out[n]\" }}\n{launch}\n\
         [run.main]\nfirst = {{ map = \"y + 1\", out = \"y\" }}\nsecond = {{ kernel = \"wide\", y = \"y\" }}\n"
    );
    std::fs::write(folder.path().join("wide.toml"), spec).expect("written");
    let done = stepgraph(folder.path(), &["check", "wide.toml"]);
    assert_eq!((done.code, done.out.as_str()), (1, ""), "{}", done.err);
    for text in ["block x is 2048", "[wide.toml:9:1]", "second = { kernel"] {
        assert!(done.err.contains(text), "{text}: {}", done.err);
    }
}

/// Protects: where the message alone does not say what to do, a line of help does.
#[test]
fn errors_come_with_a_remedy() {
    let folder = folder(&[]);
    let no_writer = SPEC.replace(r#"{ type = "u32", writer = "device" }"#, r#"{ type = "u32" }"#);
    std::fs::write(folder.path().join("no_writer.toml"), no_writer).expect("written");
    let done = stepgraph(folder.path(), &["check", "no_writer.toml"]);
    assert!(done.code == 1 && done.err.contains("help: `writer = \"host\"`"), "{}", done.err);

    let variants = SPEC.replace("[add.main]", "[add]\nvariants = [\"a\", \"b\"]\n[add.main]");
    std::fs::write(folder.path().join("variants.toml"), variants).expect("written");
    let done = stepgraph(folder.path(), &["run", "variants.toml", "--step", "add", "--device", "host"]);
    assert!(done.code == 2 && done.err.contains("help: --variant NAME"), "{}", done.err);
}

/// Protects: an error in a line of a megabyte shows the guilty part of it and says which column that is; nobody has to scroll.
#[test]
fn long_lines_are_shown_in_part() {
    let folder = folder(&[]);
    let line = format!("{}wrong\" }} # {}", "rate * x + ".repeat(200), "long ".repeat(200_000));
    std::fs::write(folder.path().join("long.toml"), SPEC.replace("rate * x\" }", &line)).expect("written");
    let done = stepgraph(folder.path(), &["check", "long.toml"]);
    assert_eq!(done.code, 1);
    assert!(done.err.contains("there is no buffer or scalar `wrong`"), "{}", &done.err[..done.err.len().min(2000)]);
    assert!(done.err.contains("[long.toml:13:2222]"), "{}", &done.err[..done.err.len().min(2000)]);
    assert!(done.err.contains("…") && done.err.contains("─────") && done.err.len() < 2000, "{} bytes", done.err.len());
}

/// Protects: the canonical form of a spec is itself a spec, and its own canonical form.
#[test]
fn canonical_specs_are_stable() {
    let folder = folder(&[]);
    let first = stepgraph(folder.path(), &["check", "sums.toml", "--canonical", "--set", "B=9"]);
    assert!(first.out.contains("x = [9]"), "{}{}", first.out, first.err);
    std::fs::write(folder.path().join("canonical.toml"), &first.out).expect("written");
    assert_eq!(stepgraph(folder.path(), &["check", "canonical.toml", "--canonical"]).out, first.out);
}

/// Protects: plans print the same bytes every time, in each form, for one step or all.
#[test]
fn lower_prints_the_same_bytes() {
    let folder = folder(&[]);
    for format in ["text", "dot", "json"] {
        let args = ["lower", "sums.toml", "--plan", "phases", "--format", format];
        let (first, second) = (stepgraph(folder.path(), &args), stepgraph(folder.path(), &args));
        assert_eq!(first.code, 0, "{}", first.err);
        assert_eq!(first.out, second.out);
        assert!(first.out.contains("sums") && first.out.contains("clear"), "{}", first.out);
    }
    let one = stepgraph(folder.path(), &["lower", "sums.toml", "--step", "add", "--format", "json"]);
    let plans: serde_json::Value = serde_json::from_str(&one.out).expect("JSON");
    assert_eq!(plans.as_array().map(Vec::len), Some(1));
    assert_eq!(plans[0]["step"], "add");
}

/// Protects: inputs and host scalars reach the step, launches repeat, and the dump has the memory that they leave.
#[test]
fn run_loads_launches_and_dumps() {
    let folder = folder(&[1.0, 2.0, 3.0, 4.0]);
    let args =
        ["run", "sums.toml", "--step", "add", "--steps", "3", "--device", "host", "--inputs", "inputs.safetensors"];
    let done = stepgraph(folder.path(), &[&args[..], &["--dump", "out.safetensors"]].concat());
    assert_eq!(done.code, 0, "{}", done.err);
    for text in ["device host", "3 launches", "total = 60.0", "t = 3"] {
        assert!(done.out.contains(text), "{text}: {}", done.out);
    }
    let file = folder.path().join("out.safetensors");
    assert_eq!(floats(&file, "sum"), [6.0, 12.0, 18.0, 24.0]);
    assert_eq!(floats(&file, "rate"), [2.0]);
    let fed = stepgraph(
        folder.path(),
        &["run", "sums.toml", "--step", "add", "--device", "host", "--inputs", "out.safetensors"],
    );
    assert_eq!(fed.code, 0, "{}", fed.err);
    assert!(
        fed.out.contains("not loaded from out.safetensors, because only steps write them: t, total"),
        "{}",
        fed.out
    );
    let auto = stepgraph(folder.path(), &["run", "sums.toml", "--step", "clear"]);
    assert_eq!(auto.code, 0, "{}", auto.err);
    assert!(auto.out.contains("(auto"), "{}", auto.out);
}

/// Protects: several steps per launch leave what as many single steps do; `--steps` counts steps, not launches.
#[test]
fn steps_are_counted_however_they_are_launched() {
    let folder = folder(&[]);
    let spec = SPEC.replace("[input]\nx", "[param]\nx").replace("x = [\"B\"]", "x = { shape = [\"B\"], init = 1.5 }");
    std::fs::write(folder.path().join("fed.toml"), spec).expect("written");
    let run = |more: &[&str]| {
        let args = ["run", "fed.toml", "--step", "add", "--device", "host"];
        let done = stepgraph(folder.path(), &[&args[..], more].concat());
        assert_eq!(done.code, 0, "{}", done.err);
        done.out
    };
    for (args, text) in [
        (&["--steps", "12"][..], "plan mega: 12 launches in"),
        (&["--steps", "12", "--unroll", "4"], "plan mega unroll 4: 3 launches of 4 steps in"),
        (&["--steps", "12", "--loop", "6"], "plan mega loop 6: 2 launches of 6 steps in"),
        (&["--loop", "12"], "plan mega loop 12: 1 launch of 12 steps in"),
    ] {
        let out = run(args);
        for text in [text, "total = 36.0", "t = 12"] {
            assert!(out.contains(text), "{text}: {out}");
        }
    }
    let args = ["bench", "fed.toml", "--step", "add", "--device", "host", "--rounds", "2", "--launches", "2"];
    let done = stepgraph(folder.path(), &[&args[..], &["--plans", "mega", "--unroll", "2,3", "--loop", "4"]].concat());
    assert_eq!(done.code, 0, "{}", done.err);
    for text in ["results of 12 steps compared", "mega unroll 3", "mega loop 4", " / 4"] {
        assert!(done.out.contains(text), "{text}: {}", done.out);
    }
    assert_eq!(done.out.matches("bit-equal").count(), 4, "{}", done.out);
}

/// Protects: wrong data is exit code 1 with a reason, and a dump that was there stays as it was.
#[test]
fn wrong_data_overwrites_nothing() {
    let folder = folder(&[1.0, 2.0]);
    let dump = folder.path().join("out.safetensors");
    std::fs::write(&dump, "precious").expect("written");
    let run = |inputs: &str| {
        let args = ["run", "sums.toml", "--step", "add", "--device", "host", "--inputs", inputs, "--dump"];
        stepgraph(folder.path(), &[&args[..], &["out.safetensors"]].concat())
    };
    std::fs::write(folder.path().join("torn.safetensors"), "{").expect("written");
    for (inputs, text) in [
        ("inputs.safetensors", "`x` has the shape [2], expected [4]"),
        ("torn.safetensors", "is no safetensors file"),
        ("absent.safetensors", "cannot be read"),
    ] {
        let done = run(inputs);
        assert_eq!(done.code, 1, "{}", done.err);
        assert!(done.err.split_whitespace().collect::<Vec<_>>().join(" ").contains(text), "{text}: {}", done.err);
        assert_eq!(std::fs::read_to_string(&dump).expect("still there"), "precious");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 4, "a temporary file is left over");
}

/// Protects: a dump never takes the place of a socket, pipe or device, a link stays a link, and a place that cannot be written is
/// told before the run.
#[cfg(unix)]
#[test]
fn dumps_replace_files_alone() {
    let folder = folder(&[1.0; 4]);
    let run = |dump: &str| {
        stepgraph(folder.path(), &["run", "sums.toml", "--step", "add", "--device", "host", "--dump", dump])
    };
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    for (dump, reason) in
        [("socket", "a device, pipe or socket"), (".", "a folder"), ("none/x", "there is no folder none")]
    {
        let done = run(dump);
        let words = done.err.replace('│', "").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!((done.code, done.out.as_str()), (1, ""), "{}", done.err);
        assert!(words.contains(reason), "{words}");
    }
    assert!(!std::fs::symlink_metadata(&socket).expect("still there").is_file());
    let (link, target) = (folder.path().join("link"), folder.path().join("target"));
    std::fs::write(&target, "old").expect("written");
    std::os::unix::fs::symlink("target", &link).expect("a link");
    assert_eq!(run("link").code, 0);
    assert!(std::fs::symlink_metadata(&link).expect("still there").is_symlink());
    assert_eq!(floats(&target, "sum").len(), 4);
}

/// Protects: a dump that could not be read again is not written, and a program without steps says so.
#[test]
fn odd_programs_are_told() {
    let folder = folder(&[1.0; 4]);
    let spec = "program = \"odd\"\n[output]\n__metadata__ = [2]\n[s.main]\n__metadata__ = { map = \"1.0\" }\n";
    std::fs::write(folder.path().join("odd.toml"), spec).expect("written");
    let done = stepgraph(folder.path(), &["run", "odd.toml", "--device", "host", "--dump", "odd.safetensors"]);
    assert_eq!(done.code, 1);
    assert!(done.err.contains("keep the name"), "{}", done.err);
    assert!(!folder.path().join("odd.safetensors").exists());
    std::fs::write(folder.path().join("none.toml"), "program = \"none\"\n").expect("written");
    for command in [&["run", "none.toml", "--device", "host"][..], &["lower", "none.toml"]] {
        let done = stepgraph(folder.path(), command);
        assert_eq!(done.code, 1);
        assert!(done.err.contains("has no steps"), "{}", done.err);
    }
}

/// Protects: exit code 2 for whatever the command line gets wrong, 1 for files that are no specs.
#[test]
fn exit_codes_tell_usage_from_data() {
    let folder = folder(&[]);
    std::fs::write(folder.path().join("binary.toml"), b"\xff\xfe").expect("written");
    let code = |args: &[&str]| {
        let done = stepgraph(folder.path(), args);
        assert!(!done.err.is_empty() && !done.err.contains("panicked"), "{args:?}: {}", done.err);
        done.code
    };
    for usage in [
        &["lower"][..],
        &["frobnicate"],
        &["lower", "sums.toml", "--plan", "quick"],
        &["lower", "sums.toml", "--step", "nope"],
        &["lower", "sums.toml", "--step", "add", "--variant", "c51"],
        &["lower", "sums.toml", "--variant", "c51"],
        &["check", "sums.toml", "--set", "B"],
        &["check", "sums.toml", "--set", "D=4"],
        &["run", "sums.toml"],
        &["run", "sums.toml", "--step", "add", "--steps", "0"],
        &["run", "sums.toml", "--step", "add", "--device", "tpu"],
        &["lower", "sums.toml", "--step", "clear", "--unroll", "0"],
        &["lower", "sums.toml", "--step", "clear", "--unroll", "2", "--loop", "2"],
        &["lower", "sums.toml", "--step", "clear", "--plan", "phases", "--loop", "2"],
        &["lower", "sums.toml", "--step", "clear", "--unroll", "4294967295"],
        &["run", "sums.toml", "--step", "clear", "--device", "host", "--unroll", "3", "--steps", "4"],
        &["bench", "sums.toml", "--step", "clear", "--device", "host", "--plans", "debug", "--loop", "2"],
    ] {
        assert_eq!(code(usage), 2, "{usage:?}");
    }
    for data in [
        &["check", "absent.toml"][..],
        &["check", "binary.toml"],
        &["check", "sums.toml", "--set", "B=0"],
        &["lower", "sums.toml", "--step", "add", "--unroll", "2"],
        &["check", "sums.toml", "--set", "B=1099511627776"],
    ] {
        assert_eq!(code(data), 1, "{data:?}");
    }
}

/// Protects: a device that is not there is exit code 3, and the doctor says what to do about it.
#[test]
fn a_missing_device_is_exit_code_3() {
    let folder = folder(&[]);
    let doctor = stepgraph(folder.path(), &["doctor"]);
    assert_eq!(doctor.code, 0);
    assert!(doctor.out.contains("--device auto"), "{}", doctor.out);
    let done = stepgraph(folder.path(), &["run", "sums.toml", "--step", "add", "--device", "cuda:99"]);
    assert_eq!(done.code, 3, "{}", done.err);
}

/// Protects: every command shows examples.
#[test]
fn help_has_examples() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    for command in [&["--help"][..], &["check", "--help"], &["lower", "--help"], &["run", "--help"]] {
        let help = stepgraph(&folder, command);
        assert_eq!(help.code, 0);
        assert!(help.out.contains("Examples:\n  stepgraph "), "{}", help.out);
    }
}

/// Protects: a run ends at the first launch that leaves a NaN or an infinity, with the node that wrote it, and dumps nothing.
#[test]
fn run_ends_at_the_first_non_finite_value() {
    let folder = folder(&[1e38, 0.0, 0.0, 0.0]);
    let run = |steps: &str| {
        let args = ["run", "sums.toml", "--step", "add", "--device", "host", "--inputs", "inputs.safetensors"];
        let more = ["--steps", steps, "--find-non-finite", "--dump", "dump.safetensors", "--on-failure", "phases"];
        stepgraph(folder.path(), &[&args[..], &more].concat())
    };
    // The rate is 2: the sum is 2e38 after one launch, and beyond the largest float, 3.4e38, after two.
    let fine = run("1");
    assert_eq!(fine.code, 0, "{}", fine.err);
    std::fs::remove_file(folder.path().join("dump.safetensors")).expect("a dump");
    let ended = run("5");
    assert_eq!(ended.code, 1, "{}", ended.err);
    let found = "launch 2: `sum`[0] is inf: node `main.sum` of step `add` wrote it";
    assert!(ended.err.split_whitespace().collect::<Vec<_>>().join(" ").contains(found), "{}", ended.err);
    assert!(!folder.path().join("dump.safetensors").exists());
}
