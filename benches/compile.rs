//! The compile pipeline: a spec's text to a plan, for networks of 1,000 to 100,000 nodes.
//!
//! `deep` is one network of many layers; `ensemble` is many networks side by side. Both train: forward, backward, one Adam
//! call per network. Targets: 1,000 nodes in 20 ms, 100,000 in 3 s, near-linear.

use std::fmt::Write;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning};
use stepgraph::spec::{self, ParsedSpec, SpecOptions};
use stepgraph::valid::{ValidProgram, validate};

const WIDTH: usize = 16;
/// Nodes of one layer: product and map forward; weight gradient, bias gradient, product and map backward.
const NODES_PER_LAYER: usize = 6;

/// The spec of an ensemble of networks of `layers` layers each.
fn spec_text(networks: usize, layers: usize) -> String {
    let mut parts = [const { String::new() }; 5];
    let [params, groups, forward, backward, update] = &mut parts;
    for net in 0..networks {
        let mut members = Vec::new();
        for layer in 0..layers {
            let name = format!("n{net}.l{layer}");
            add(params, &format!("{name} = {{ w = [{WIDTH}, {WIDTH}], b = [{WIDTH}] }}"));
            members.push(format!("\"{name}.w\", \"{name}.b\""));
            let input = if layer == 0 { "x".to_owned() } else { format!("h{net}_{}", layer - 1) };
            add(
                forward,
                &format!("h{net}_{layer} = {{ gemm = \"{input} @ {name}.w'\", then = \"relu(acc + {name}.b)\" }}"),
            );
            let above = format!("d{net}_{}", layer + 1);
            let (own, weights) = (format!("d{net}_{layer}"), format!("grad{net}.{name}"));
            let mut lines = String::new();
            add(&mut lines, &format!("dw{net}_{layer} = {{ gemm = \"{above}' @ {input}\", out = \"{weights}.w\" }}"));
            add(
                &mut lines,
                &format!(
                    "db{net}_{layer} = {{ reduce = \"{above}\", by = \"sum\", axes = [0], out = \"{weights}.b\" }}"
                ),
            );
            add(
                &mut lines,
                &format!("{own} = {{ gemm = \"{above} @ {name}.w\", then = \"select({input} > 0, acc, 0)\" }}"),
            );
            backward.insert_str(0, &lines);
        }
        backward.insert_str(0, &format!("d{net}_{layers} = {{ map = \"h{net}_{} - x\" }}\n", layers - 1));
        add(groups, &format!("theta{net} = [{}]", members.join(", ")));
        for (name, role) in [("m", "state"), ("v", "state"), ("grad", "temp")] {
            add(groups, &format!("{name}{net} = {{ like = \"theta{net}\", role = \"{role}\" }}"));
        }
        add(
            update,
            &format!(
                "adam{net} = {{ kernel = \"adam\", param = \"theta{net}\", grad = \"grad{net}\", m = \"m{net}\", v = \"v{net}\", \
                 step = \"t\", lr = \"rate\", beta1 = 0.9, beta2 = 0.999, eps = 1e-8 }}"
            ),
        );
    }
    let [params, groups, forward, backward, update] = parts;
    format!(
        "program = \"bench\"\n[scalar]\nrate = {{ init = 1e-3, writer = \"host\" }}\nt = {{ type = \"u32\", writer = \"device\" }}\n\
         [input]\nx = [32, {WIDTH}]\n[param]\n{params}[group]\n{groups}[train.forward]\n{forward}[train.backward]\n{backward}\
         [train.update]\ncount = {{ map = \"t + 1\", out = \"t\" }}\n{update}"
    )
}

fn add(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("strings grow");
}

fn read(text: &str) -> ParsedSpec {
    spec::parse(text, &SpecOptions::default()).expect("the spec is right")
}

fn check(parsed: ParsedSpec) -> ValidProgram {
    validate(parsed.program, parsed.origins, parsed.host_fns).expect("the program is valid")
}

fn lower(program: &ValidProgram) -> StepPlan {
    program.plan("train", &FusionPlan::mega(), &Target::default(), &Tuning::default()).expect("the step can be planned")
}

fn compile(criterion: &mut Criterion) {
    for (shape, depth) in [("deep", None), ("ensemble", Some(16))] {
        let mut group = criterion.benchmark_group(format!("compile/{shape}"));
        for nodes in [1_000, 10_000, 100_000] {
            let all_layers = nodes / NODES_PER_LAYER;
            let layers = depth.unwrap_or(all_layers);
            let text = spec_text(all_layers.div_ceil(layers), layers);
            let program = check(read(&text));
            group.throughput(Throughput::Elements(nodes as u64));
            group.sample_size(10).measurement_time(Duration::from_secs(if nodes > 10_000 { 30 } else { 5 }));
            group.bench_function(BenchmarkId::new("parse", nodes), |bencher| bencher.iter(|| read(&text)));
            group.bench_function(BenchmarkId::new("validate", nodes), |bencher| {
                bencher.iter_batched(|| read(&text), check, BatchSize::PerIteration);
            });
            group.bench_function(BenchmarkId::new("plan", nodes), |bencher| bencher.iter(|| lower(&program)));
            group.bench_function(BenchmarkId::new("all", nodes), |bencher| bencher.iter(|| lower(&check(read(&text)))));
        }
        group.finish();
    }
}

criterion_group!(benches, compile);
criterion_main!(benches);
