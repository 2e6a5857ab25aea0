//! Reductions.

use super::coords::Coords;
use super::kernel::{Draft, GeneratedKernel};
use super::params::Params;
use super::printer::{Printer, c_type};
use super::schedule::{ReduceLayout, ReduceSchedule, reduce_schedule};
use crate::ir::{Combiner, LaunchConfig, Reduce, ValueType};

/// The kernels of a reduction: one, or one that reduces chunks and one that combines them.
pub(super) fn kernels(draft: &Draft<'_>, reduce: &Reduce) -> Vec<GeneratedKernel> {
    let schedule = reduce_schedule(reduce);
    let reduction = Reduction { draft, reduce, schedule, layout: ReduceLayout::of(reduce) };
    match schedule.second {
        None => vec![reduction.whole()],
        Some(second) => vec![reduction.chunks(), reduction.combination(second)],
    }
}

struct Reduction<'a> {
    draft: &'a Draft<'a>,
    reduce: &'a Reduce,
    schedule: ReduceSchedule,
    layout: ReduceLayout,
}

/// One pass over values: who produces them, and how many there are.
struct Pass<'a> {
    launch: LaunchConfig,
    lanes: u32,
    /// Where a chunk begins and ends, as statements that declare `begin` and `end`.
    range: String,
    /// Statements of the loop's body that declare `next` from `value`.
    next: &'a str,
    /// Declarations before the loop.
    before: &'a str,
    state: &'a str,
}

impl Reduction<'_> {
    fn whole(&self) -> GeneratedKernel {
        let mut params = Params::new(self.draft.program);
        params.add_expr(&self.reduce.expr);
        params.add_expr(&self.reduce.finish);
        params.add_stores(&self.reduce.stores);
        let values = self.values(&params);
        let pass = Pass {
            launch: self.schedule.first,
            lanes: self.schedule.lanes,
            range: format!("    const unsigned int begin = 0u, end = {}u;\n", self.reduce.count()),
            next: &values.next,
            before: &values.before,
            state: &values.state,
        };
        let body = self.pass(&pass) + &self.finish(&params, values.result_type);
        self.draft.finish("", &self.title(""), params, self.schedule.first, &body)
    }

    fn chunks(&self) -> GeneratedKernel {
        let mut params = Params::new(self.draft.program);
        params.add_expr(&self.reduce.expr);
        let values = self.values(&params);
        let pass = Pass {
            launch: self.schedule.first,
            lanes: self.schedule.lanes,
            range: format!(
                "    const unsigned int begin = blockIdx.y * {chunk}u, end = sg::min(begin + {chunk}u, {}u);\n",
                self.reduce.count(),
                chunk = self.schedule.chunk
            ),
            next: &values.next,
            before: &values.before,
            state: &values.state,
        };
        let partial = self.partial("blockIdx.y");
        let body = self.pass(&pass) + &format!("    if (present && lane == 0u) {partial} = state;\n");
        params.add_workspace("partial", &values.state, true);
        let what = self.title(&format!(", chunks of {}", self.schedule.chunk));
        self.draft.finish("__chunks", &what, params, self.schedule.first, &body)
    }

    fn combination(&self, launch: LaunchConfig) -> GeneratedKernel {
        let (state, result_type) = {
            let mut params = Params::new(self.draft.program);
            params.add_expr(&self.reduce.expr);
            let values = self.values(&params);
            (values.state, values.result_type)
        };
        let mut params = Params::new(self.draft.program);
        params.add_workspace("partial", &state, false);
        params.add_expr(&self.reduce.finish);
        params.add_stores(&self.reduce.stores);
        let next = format!("        const {state} next = {};\n", self.partial("value"));
        let pass = Pass {
            launch,
            lanes: self.schedule.chunk_lanes,
            range: format!("    const unsigned int begin = 0u, end = {}u;\n", self.schedule.chunks),
            next: &next,
            before: "",
            state: &state,
        };
        let body = self.pass(&pass) + &self.finish(&params, result_type);
        self.draft.finish("", &self.title(", chunks combined"), params, launch, &body)
    }

    fn title(&self, suffix: &str) -> String {
        let axes: Vec<_> = self.reduce.axes.iter().map(u8::to_string).collect();
        format!("{} of {} over axes {}{suffix}", self.reduce.combiner.name(), self.reduce.space, axes.join(", "))
    }

    /// The place of a chunk's result in the workspace: what neighbouring lanes read lies side by side.
    fn partial(&self, chunk: &str) -> String {
        match self.layout {
            ReduceLayout::Rows => format!("partial[result * {}u + {chunk}]", self.schedule.chunks),
            ReduceLayout::Columns => format!("partial[{chunk} * {}u + result]", self.reduce.kept().elements()),
        }
    }

    /// The loop over a lane's values and the fold over lanes; lane 0 ends with the chunk's `state`.
    fn pass(&self, pass: &Pass<'_>) -> String {
        let Pass { launch, lanes, range, next, before, state } = pass;
        let results = self.reduce.kept().elements();
        let (lane, of_result, per_block, fold) = match self.layout {
            ReduceLayout::Rows => (
                "threadIdx.x",
                "threadIdx.y",
                launch.block[1],
                format!("sg::fold_rows<{lanes}>(state, lane, end - begin)"),
            ),
            ReduceLayout::Columns => {
                let width = launch.block[0];
                let fold = format!("sg::fold_columns<{lanes}, {width}>(state, lane, end - begin)");
                ("threadIdx.y", "threadIdx.x", width, fold)
            }
        };
        let fold = if *lanes > 1 { format!("    state = {fold};\n") } else { String::new() };
        format!(
            "    const unsigned int lane = {lane};
    const unsigned int result = blockIdx.x * {per_block}u + {of_result};
    const bool present = result < {results}u;
{range}{before}    {state} state{{}};
    for (unsigned int value = begin + lane; present && value < end; value += {lanes}u) {{
{next}        state = value == begin + lane ? next : sg::combine(state, next);
    }}
{fold}"
        )
    }

    /// Statements that make the next value's state, and what they need.
    fn values(&self, params: &Params<'_>) -> Values {
        let coords = Coords::split(self.reduce.space, &self.reduce.axes, "result", "value");
        let mut printer = Printer::new(self.draft.program, params, coords, 'v', &self.reduce.expr, ValueType::F32);
        let lines = printer.values("        ");
        let (root, root_type) = (printer.root(), printer.root_type());
        let element = c_type(root_type);
        let (state, init, result_type) = match self.reduce.combiner {
            Combiner::Sum => (format!("sg::Sum<{element}>"), root, root_type),
            Combiner::Max => (format!("sg::Max<{element}>"), root, root_type),
            Combiner::Argmax => (format!("sg::Argmax<{element}>"), format!("{root}, value"), ValueType::U32),
            Combiner::LogSumExp => ("sg::LogSumExp".into(), format!("{root}, 1.0f"), root_type),
        };
        let next = format!(
            "{}{lines}        const {state} next{{{init}}};\n",
            printer.coords.declarations("value", "        ")
        );
        Values { before: printer.coords.declarations("result", "    "), next, state, result_type }
    }

    /// Lane 0 turns the state into results and stores them.
    fn finish(&self, params: &Params<'_>, result_type: ValueType) -> String {
        let coords = Coords::linear(self.reduce.kept(), "result");
        let mut printer = Printer::new(self.draft.program, params, coords, 'r', &self.reduce.finish, result_type);
        let (values, stores) = (printer.values("    "), printer.stores(&self.reduce.stores, "    "));
        // The loop's coordinates and the results' are numbered separately, so they live in separate scopes.
        let declarations = printer.coords.declarations("result", "        ");
        let inner = indented(&(values + &stores));
        let result = c_type(result_type);
        format!(
            "    if (present && lane == 0u) {{
        const {result} acc = sg::result(state);
{declarations}{inner}    }}
"
        )
    }
}

struct Values {
    before: String,
    next: String,
    state: String,
    result_type: ValueType,
}

fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("    {line}\n")).collect()
}
