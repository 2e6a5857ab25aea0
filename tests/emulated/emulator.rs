//! Runs the generated kernels of a program on the CPU, and the same program on the host executor.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use stepgraph::codegen::{GeneratedKernel, Generator, PRELUDE, ParamSource, workspace_bytes};
use stepgraph::entity::{EntityRef, NodeId};
use stepgraph::ir::{DType, NodeOp, Program, Role, Step};
use stepgraph::plan::{FusionPlan, Target, Tuning};
use stepgraph::runtime::{Device, RuntimeError, Session};
use stepgraph::valid::ValidProgram;

/// A program whose only step has generated kernels alone, with what its memory holds before and after it.
pub(crate) struct Case {
    pub(crate) name: String,
    program: ValidProgram,
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
}

impl Case {
    /// Runs the program on the host. `None` where the host finds a broken promise of a scattered store.
    pub(crate) fn new(
        name: String,
        program: ValidProgram,
        fill: impl Fn(DType, u64, usize) -> Vec<u8>,
    ) -> Option<Self> {
        let step = program.program().steps.values().next().expect("one step").name.clone();
        let plan = program.plan(&step, &FusionPlan::debug(), &Target::default(), &Tuning::default()).expect("it plans");
        let mut session = Session::open(Device::Host, [plan]).expect("it opens");
        for (id, buffer) in program.program().buffers.iter() {
            assert!(buffer.role != Role::Temp, "{name}: temps cannot be compared");
            let count = usize::try_from(buffer.shape.elements()).expect("small");
            let bytes = fill(buffer.dtype, id.index() as u64, count);
            session.write_by_name(&buffer.name, buffer.dtype, &bytes).expect("it takes values");
        }
        let before = memory(&mut session, program.program());
        match session.launch(&step) {
            Ok(_) => {}
            Err(RuntimeError::Host(_)) => return None,
            Err(error) => panic!("{name}: {error}"),
        }
        let after = memory(&mut session, program.program());
        Some(Self { name, program, before, after })
    }
}

/// Every buffer and every scalar, in order.
fn memory(session: &mut Session, program: &Program) -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    for buffer in program.buffers.values() {
        found.push(session.read_by_name(&buffer.name).expect("it can be read").bytes);
    }
    for scalar in program.scalars.values() {
        let bits = session.read_scalar_by_name(&scalar.name).expect("it can be read").bits();
        found.push(bits.to_le_bytes().to_vec());
    }
    found
}

/// Compiles and runs the generated kernels of all cases, and compares what they leave, bit for bit but for the kind of NaN.
///
/// Undefined behaviour and writes outside memory stop the run.
pub(crate) fn compare(cases: &[Case]) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("device.hpp"), include_str!("device.hpp")).expect("writable");
    fs::write(at("kernels.cpp"), source(cases)).expect("writable");
    fs::write(at("before"), cases.iter().flat_map(|case| case.before.concat()).collect::<Vec<u8>>()).expect("writable");
    // Built-in functions off: the compiler would fold them with other roundings than the library's, which the host uses.
    let flags = ["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fno-builtin", "-fsanitize=undefined"];
    let output = Command::new("g++")
        .args(flags)
        .args(["-fno-sanitize-recover=all", "-o"])
        .args([at("emulate"), at("kernels.cpp")])
        .output()
        .expect("g++ runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(at("emulate")).args([at("before"), at("after")]).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let after = fs::read(at("after")).expect("readable");
    let mut rest = after.as_slice();
    for case in cases {
        let names = case.program.program().buffers.values().map(|buffer| (buffer.name.as_str(), buffer.dtype));
        let scalars = case.program.program().scalars.values().map(|scalar| (scalar.name.as_str(), scalar.init.dtype()));
        for ((name, dtype), host) in names.chain(scalars).zip(&case.after) {
            let (emulated, others) = rest.split_at(host.len());
            rest = others;
            assert_same(&case.name, name, dtype, host, emulated);
        }
    }
    assert!(rest.is_empty());
}

fn assert_same(case: &str, name: &str, dtype: DType, host: &[u8], emulated: &[u8]) {
    let size = usize::try_from(dtype.size()).expect("small");
    for (at, (a, b)) in host.chunks(size).zip(emulated.chunks(size)).enumerate() {
        let (host, emulated) = (bits(dtype, a), bits(dtype, b));
        let float = matches!(dtype, DType::F32 | DType::Bf16);
        let both_nan = float && f32::from_bits(host).is_nan() && f32::from_bits(emulated).is_nan();
        assert!(host == emulated || both_nan, "{case}: `{name}`[{at}]: host {host:#x}, kernel {emulated:#x}");
    }
}

fn bits(dtype: DType, bytes: &[u8]) -> u32 {
    match dtype {
        DType::Bf16 => u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16,
        _ => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
}

fn source(cases: &[Case]) -> String {
    let mut text = format!("#include \"device.hpp\"\n{}\n", PRELUDE.replace("#pragma once", ""));
    text.push_str("extern \"C\" void cudaGraphSetConditional(unsigned long long condition, unsigned int value) {\n");
    text.push_str("    condition_values[condition] = value;\n}\n");
    let mut main = String::from("int main(int, char** names) {\n    FILE* in = fopen(names[1], \"rb\");\n");
    main.push_str("    FILE* out = fopen(names[2], \"wb\");\n");
    for (number, case) in cases.iter().enumerate() {
        let _ = write!(text, "namespace case{number} {{\n{}}}\n", case_source(case));
        let _ = writeln!(main, "    case{number}::run(in, out);");
    }
    text + &main + "    return fclose(out);\n}\n"
}

fn case_source(case: &Case) -> String {
    let program = case.program.program();
    let (id, step) = program.steps.iter().next().expect("one step");
    let order: Vec<_> = step.phases.values().flat_map(|phase| phase.nodes.iter().copied()).collect();
    let workspaces: Vec<_> = step.nodes.values().map(|node| workspace_bytes(&node.op).to_string()).collect();
    let sizes: Vec<_> = case.before.iter().map(|bytes| bytes.len().to_string()).collect();
    let generator = Generator::new(&case.program, id);
    let mut source = CaseSource { program, step, generator, kernels: String::new(), run: String::new() };

    source.run.push_str("void run(FILE* in, FILE* out) {\n    std::vector<Guarded> memory, workspaces;\n");
    let _ = writeln!(source.run, "    for (size_t size : {{{}}}) memory.emplace_back(size);", sizes.join(", "));
    let _ =
        writeln!(source.run, "    for (size_t size : {{{}}}) workspaces.emplace_back(size);", workspaces.join(", "));
    source.run.push_str("    for (auto& m : memory) if (fread(m.data(), 1, m.size, in) != m.size) exit(1);\n");
    let _ = writeln!(source.run, "    std::vector<unsigned int> conditions({});", step.nodes.len());
    source.run.push_str("    condition_values = conditions.data();\n    unsigned int stop = 0;\n    (void)stop;\n");
    source.body(&order);
    let _ = writeln!(source.run, "    for (auto& m : memory) m.check({:?});", case.name);
    let _ = writeln!(source.run, "    for (auto& w : workspaces) w.check({:?});", case.name);
    source.run.push_str("    for (auto& m : memory) fwrite(m.data(), 1, m.size, out);\n}\n");
    source.kernels + &source.run
}

/// The C++ of one case, while it is written.
struct CaseSource<'a> {
    program: &'a Program,
    step: &'a Step,
    generator: Generator<'a>,
    kernels: String,
    run: String,
}

impl CaseSource<'_> {
    /// The launches of a list of nodes; conditionals as a driver runs them, decided by what their setters set.
    fn body(&mut self, nodes: &[NodeId]) {
        for &node in nodes {
            let mut kernels = self.generator.kernels(node).into_iter();
            let op = &self.step.nodes[node].op;
            if op.bodies().is_empty() {
                kernels.for_each(|kernel| self.launch(node, &kernel));
                continue;
            }
            let setter = kernels.next().expect("a setter");
            self.launch(node, &setter);
            let (bodies, index) = (op.bodies(), node.index());
            if let (NodeOp::While { .. }, Some(advance)) = (op, kernels.next()) {
                let _ = writeln!(self.run, "    while (conditions[{index}]) {{");
                self.body(bodies[0]);
                self.launch(node, &advance);
                self.run.push_str("    }\n");
                continue;
            }
            for (number, body) in bodies.into_iter().enumerate() {
                let is_condition = matches!(op, NodeOp::If { .. });
                let chosen =
                    if is_condition { format!("!conditions[{index}]") } else { format!("conditions[{index}]") };
                let _ = writeln!(self.run, "    if ({chosen} == {number}) {{");
                self.body(body);
                self.run.push_str("    }\n");
            }
        }
    }

    fn launch(&mut self, node: NodeId, kernel: &GeneratedKernel) {
        self.kernels.push_str(&kernel.source.replace("extern \"C\" ", ""));
        let node = node.index();
        let argument = |param: &ParamSource| match param {
            ParamSource::Buffer(id) => format!("Address{{memory[{}].data()}}", id.index()),
            ParamSource::Scalar(id) => format!("Address{{memory[{}].data()}}", self.program.buffers.len() + id.index()),
            ParamSource::Workspace => format!("Address{{workspaces[{node}].data()}}"),
            ParamSource::Condition => format!("{node}ull"),
            ParamSource::Stop => "Address{&stop}".into(),
        };
        let args: Vec<_> = kernel.params.iter().map(argument).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (kernel.launch.grid, kernel.launch.block);
        let (name, args) = (&kernel.name, args.join(", "));
        let _ =
            writeln!(self.run, "    launch({{{gx}, {gy}, {gz}}}, {{{bx}, {by}, {bz}}}, [&] {{ {name}({args}); }});");
    }
}
