//! From instructions to passes over tiles.

use super::layout::{Access, Layout, Operand};
use super::map::{self, Pass1, Pass2, Pass3};
use super::{Builder, Inst, NAME, Place, Pointwise, Reg, convert, ops};
use crate::KernelError;
use crate::simd::{Level, level};
use neuron_ir::{DType, Scalar};

/// Where a value is at run time: an index into the table of addresses, splats first.
pub type Slot = u16;

/// One pass.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A function of one value; `one` for splats.
    Pass1 { pass: Pass1, d: Slot, a: Slot, one: bool },
    /// A function of two values.
    Pass2 { pass: Pass2, d: Slot, a: Slot, b: Slot, one: bool },
    /// A selection.
    Pass3 { pass: Pass3, d: Slot, c: Slot, a: Slot, b: Slot, one: bool },
    /// Fails where an `i64` divisor is 0.
    CheckDivisor { b: Slot, one: bool },
    /// Reads a view into a tile. `grid` gathers; `kept` numbers the tiles that stay valid while the view stands still.
    Fetch { view: u16, d: Slot, pass: Option<Pass1>, size: u8, grid: bool, kept: Option<u16> },
    /// The coordinates that a view counts; `one` where they are the same for a tile.
    Coordinates { view: u16, d: Slot, one: bool },
    /// The first element that a view sees, converted.
    Splat { view: u16, d: Slot, pass: Pass1 },
    /// Writes a tile, converted, to a view that is not contiguous. `one`: the value is a splat.
    Scatter { view: u16, a: Slot, pass: Option<Pass1>, size: u8, one: bool },
}

/// A compiled program.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Run once per launch, on splats.
    pub once: Vec<Step>,
    /// Run for each tile.
    pub steps: Vec<Step>,
    /// Splats as a launch starts: constants are in place.
    pub splats: Vec<u64>,
    /// Splats that are scalars of the launch.
    pub scalars: Vec<(Slot, usize, DType)>,
    /// Slots that follow a view from tile to tile.
    pub bound: Vec<(Slot, u16)>,
    /// Slots in scratch memory, with their offset in bytes.
    pub tiles: Vec<(Slot, usize)>,
    /// Number of slots.
    pub slots: usize,
    /// Tiles that [`Step::Fetch`] keeps.
    pub kept: usize,
    /// Where a tile is converted on its way between memory and a slot.
    pub staging: usize,
    /// Bytes of scratch memory.
    pub scratch: usize,
    /// Picoseconds per element.
    pub cost: u64,
}

/// Tile registers of a program should stay within the first-level cache.
const L1: usize = 32 << 10;
const TILE: usize = 1024;
/// A copy has one register at most: larger tiles make longer runs of a transposed operand.
const COPY_TILE: usize = 4096;

/// Makes the kernel of a program.
pub fn compile(b: &Builder) -> Result<Pointwise, KernelError> {
    let numel: i64 = b.sizes.iter().product();
    let (mut views, mut view_buffers, mut loaded, mut stored) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut view_of_inst = vec![None; b.insts.len()];
    let live = live(b);
    for (i, inst) in b.insts.iter().enumerate().filter(|(i, _)| live[*i]) {
        let (operand, buffer) = match inst {
            Inst::Load(place) => (operand(place, &b.sizes), Some(place.buffer)),
            Inst::Iota { dim } => {
                let strides = (0..b.sizes.len()).map(|d| (d == *dim && b.sizes[d] > 1) as i64).collect();
                (Operand { strides, size: 0 }, None)
            }
            _ => continue,
        };
        view_of_inst[i] = Some(views.len() as u16);
        views.push(operand);
        view_buffers.push(buffer);
        loaded.extend(buffer);
    }
    let first_store = views.len();
    for (place, _) in &b.stores {
        views.push(operand(place, &b.sizes));
        view_buffers.push(Some(place.buffer));
        stored.push(place.buffer);
    }
    let scalars =
        b.insts.iter().filter_map(|i| if let Inst::Scalar { index, .. } = i { Some(index + 1) } else { None });
    let mut kernel = Pointwise {
        layout: Layout { rows: 0, cols: 0, row_extent: 0, col_extent: 0, loops: Vec::new(), views: Vec::new() },
        buffers: view_buffers.iter().flatten().map(|b| b + 1).max().unwrap_or(0),
        scalars: scalars.max().unwrap_or(0),
        view_buffers,
        loaded,
        stored,
        separate: Program::default(),
        in_place: Program::default(),
        tiles_per_task: 1,
        cost: 0,
    };
    if numel == 0 || b.stores.is_empty() {
        return Ok(kernel);
    }
    if 4 * (b.insts.len() + b.stores.len()) > u16::MAX as usize {
        return Err(KernelError::Unsupported { kernel: NAME, what: format!("{} instructions", b.insts.len()) });
    }
    let copies = b.insts.iter().zip(&live).all(|(inst, live)| !live || matches!(inst, Inst::Load(_)));
    let mut tile = if copies && b.stores.len() == 1 { COPY_TILE } else { TILE };
    loop {
        kernel.layout = Layout::new(&b.sizes, &views, first_store, tile);
        let compiler =
            |in_place| Compiler::new(b, &live, &kernel.layout, &view_of_inst, first_store, in_place).compile();
        kernel.separate = compiler(false);
        if kernel.separate.scratch <= L1 || tile <= TILE / 4 {
            kernel.in_place = compiler(true);
            break;
        }
        tile /= 2;
    }

    let tiles = kernel.layout.tiles() as u64;
    let overhead = 10 + 4 * kernel.separate.steps.len() as u64;
    kernel.cost = 20 + (numel as u64 * kernel.separate.cost) / 1000 + tiles * overhead;
    kernel.tiles_per_task = (20_000 * tiles).div_ceil(kernel.cost) as usize;
    if kernel.cost < 30_000 {
        kernel.tiles_per_task = tiles as usize;
    }
    Ok(kernel)
}

fn operand(place: &Place, sizes: &[i64]) -> Operand {
    let size = place.dtype.size();
    let strides = sizes.iter().zip(&place.strides).map(|(n, s)| if *n == 1 { 0 } else { s * size as i64 }).collect();
    Operand { strides, size }
}

/// Which instructions a store depends on.
fn live(b: &Builder) -> Vec<bool> {
    let mut live = vec![false; b.insts.len()];
    for (_, r) in &b.stores {
        live[r.0 as usize] = true;
    }
    for i in (0..b.insts.len()).rev() {
        if live[i] {
            b.insts[i].operands().for_each(|r| live[r.0 as usize] = true);
        }
    }
    live
}

/// How often a value differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rate {
    Launch,
    Tile,
    Element,
}

/// A value of the program: splats and tiles are numbered apart until all are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Splat(u16),
    Tile(u16),
}

/// What becomes of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// Memory of a view.
    View(u16),
    /// A register of elements of `size` bytes; `kept` from tile to tile.
    Register { size: usize, kept: bool },
}

/// A step before slots are numbered: the operands of the step are positions in `values`.
struct Draft {
    step: Step,
    values: [Option<Value>; 4],
}

struct Compiler<'a> {
    b: &'a Builder,
    live: &'a [bool],
    layout: &'a Layout,
    view_of_inst: &'a [Option<u16>],
    first_store: usize,
    in_place: bool,
    level: Level,
    rates: Vec<Rate>,
    /// Loads that are only stored again, as the type they have: moved as bits.
    raw: Vec<bool>,
    emitted: Vec<Option<Value>>,
    homes: Vec<Home>,
    drafts: Vec<Draft>,
    once: Vec<Draft>,
    program: Program,
}

impl<'a> Compiler<'a> {
    fn new(
        b: &'a Builder,
        live: &'a [bool],
        layout: &'a Layout,
        view_of_inst: &'a [Option<u16>],
        first_store: usize,
        in_place: bool,
    ) -> Self {
        let mut rates: Vec<Rate> = Vec::with_capacity(b.insts.len());
        for (i, inst) in b.insts.iter().enumerate() {
            let rate = match (inst, view_of_inst[i]) {
                (_, Some(view)) => {
                    let view = &layout.views[view as usize];
                    match view.access {
                        _ if view.uniform => Rate::Launch,
                        Access::Splat => Rate::Tile,
                        _ => Rate::Element,
                    }
                }
                _ => inst.operands().map(|r| rates[r.0 as usize]).max().unwrap_or(Rate::Launch),
            };
            rates.push(rate);
        }
        let raw = (0..b.insts.len())
            .map(|i| {
                let Inst::Load(place) = &b.insts[i] else { return false };
                let operand = |(k, inst): (usize, &Inst)| live[k] && inst.operands().any(|r| r.0 as usize == i);
                !b.insts.iter().enumerate().any(operand)
                    && b.stores.iter().filter(|(_, r)| r.0 as usize == i).all(|(p, _)| p.dtype == place.dtype)
            })
            .collect();
        Compiler {
            b,
            live,
            layout,
            view_of_inst,
            first_store,
            in_place,
            level: level(),
            rates,
            raw,
            emitted: vec![None; b.insts.len()],
            homes: Vec::new(),
            drafts: Vec::new(),
            once: Vec::new(),
            program: Program::default(),
        }
    }

    fn compile(mut self) -> Program {
        for i in 0..self.b.insts.len() {
            // Loads wait for their first use, so that registers are occupied briefly.
            if self.live[i] && self.view_of_inst[i].is_none() {
                self.emit(i);
                if !self.in_place {
                    self.emit_stores_of(i);
                }
            }
        }
        if self.in_place {
            // Everything is read before anything is written.
            for i in 0..self.b.insts.len() {
                if self.live[i] {
                    self.emit(i);
                }
            }
        }
        for i in 0..self.b.insts.len() {
            if self.in_place || self.view_of_inst[i].is_some() {
                self.emit_stores_of(i);
            }
        }
        self.assign()
    }

    fn splat(&mut self, bits: u64) -> Value {
        self.program.splats.push(bits);
        Value::Splat((self.program.splats.len() - 1) as u16)
    }

    fn tile(&mut self, home: Home) -> Value {
        self.homes.push(home);
        Value::Tile((self.homes.len() - 1) as u16)
    }

    fn draft(&mut self, rate: Rate, step: Step, values: [Option<Value>; 4], cost: u32) {
        let draft = Draft { step, values };
        match rate {
            Rate::Launch => self.once.push(draft),
            Rate::Tile => self.drafts.push(draft),
            Rate::Element => {
                self.program.cost += cost as u64;
                self.drafts.push(draft);
            }
        }
    }

    /// A place for the value of an instruction. A tile goes straight to the memory of a store where it can.
    fn destination(&mut self, i: usize, size: usize) -> Value {
        if self.rates[i] != Rate::Element {
            return self.splat(0);
        }
        if !self.in_place {
            let direct = self.b.stores.iter().enumerate().find(|(k, (place, r))| {
                r.0 as usize == i
                    && (self.raw[i] || place.dtype == self.b.types[i])
                    && self.layout.views[self.first_store + k].access == Access::Linear
            });
            if let Some((k, _)) = direct {
                return self.tile(Home::View((self.first_store + k) as u16));
            }
        }
        self.tile(Home::Register { size, kept: false })
    }

    fn emit(&mut self, i: usize) -> Value {
        if let Some(value) = self.emitted[i] {
            return value;
        }
        let rate = self.rates[i];
        let one = rate != Rate::Element;
        let class = self.b.types[i];
        let value = match &self.b.insts[i] {
            Inst::Load(place) => self.emit_load(i, place.dtype),
            Inst::Iota { .. } => self.emit_coordinates(i),
            Inst::Constant { bits } => self.splat(*bits),
            Inst::Scalar { index, dtype } => {
                let value = self.splat(0);
                if let Value::Splat(slot) = value {
                    self.program.scalars.push((slot, *index, *dtype));
                }
                value
            }
            Inst::Unary(op, a) => {
                let found = ops::unary(*op, self.b.types[a.0 as usize], self.level);
                let a = self.emit(a.0 as usize);
                let d = self.destination(i, class.size());
                if let Some(f) = found {
                    let step = Step::Pass1 { pass: f.pass, d: 0, a: 0, one };
                    self.draft(rate, step, [Some(d), Some(a), None, None], f.cost);
                }
                d
            }
            Inst::Convert(a, to) => {
                let pass = convert::convert(self.b.types[a.0 as usize], *to, self.level);
                let a = self.emit(a.0 as usize);
                let d = self.destination(i, class.size());
                let step = Step::Pass1 { pass: convert::or_copy(pass, class), d: 0, a: 0, one };
                self.draft(rate, step, [Some(d), Some(a), None, None], 40);
                d
            }
            Inst::Binary(op, a, b) => {
                let class = self.b.types[a.0 as usize];
                let divides = ops::divides(*op, class);
                let (a, b) = (self.emit(a.0 as usize), self.emit(b.0 as usize));
                let splat = |v| matches!(v, Value::Splat(_));
                let shape = ops::Shape { level: self.level, a: splat(a), b: splat(b) };
                if divides {
                    // Checked as often as the quotient is computed, so that the error is found before any use of it.
                    let step = Step::CheckDivisor { b: 0, one: splat(b) };
                    self.draft(rate, step, [None, Some(b), None, None], 30);
                }
                let d = self.destination(i, self.b.types[i].size());
                if let Some(f) = ops::binary(*op, class, shape) {
                    let step = Step::Pass2 { pass: f.pass, d: 0, a: 0, b: 0, one };
                    self.draft(rate, step, [Some(d), Some(a), Some(b), None], f.cost);
                }
                d
            }
            Inst::Select(c, a, b) => {
                let (c, a, b) = (self.emit(c.0 as usize), self.emit(a.0 as usize), self.emit(b.0 as usize));
                let splat = |v| matches!(v, Value::Splat(_));
                let c = if !one && splat(c) { self.spread(c, 1) } else { c };
                let d = self.destination(i, class.size());
                let pass = map::select(self.level, class.size(), splat(a), splat(b));
                let step = Step::Pass3 { pass, d: 0, c: 0, a: 0, b: 0, one };
                self.draft(rate, step, [Some(d), Some(c), Some(a), Some(b)], 40);
                d
            }
        };
        self.emitted[i] = Some(value);
        value
    }

    /// A tile full of a splat.
    fn spread(&mut self, a: Value, size: usize) -> Value {
        let d = self.tile(Home::Register { size, kept: false });
        let step = Step::Pass1 { pass: map::fill(self.level, size), d: 0, a: 0, one: false };
        self.draft(Rate::Element, step, [Some(d), Some(a), None, None], 10);
        d
    }

    fn emit_load(&mut self, i: usize, dtype: DType) -> Value {
        let index = self.view_of_inst[i].expect("loads have views");
        let view = &self.layout.views[index as usize];
        let pass = if self.raw[i] { None } else { convert::load(dtype, self.level) };
        let memory = 30 * dtype.size() as u32;
        let rate = self.rates[i];
        if rate != Rate::Element {
            let d = self.splat(0);
            let step = Step::Splat { view: index, d: 0, pass: convert::or_copy(pass, dtype) };
            self.draft(rate, step, [Some(d), None, None, None], 0);
            return d;
        }
        let grid = view.access == Access::Grid;
        let stored = || self.b.stores.iter().any(|(_, r)| r.0 as usize == i);
        if !grid && pass.is_none() && !(self.in_place && stored()) {
            self.program.cost += memory as u64;
            return self.tile(Home::View(index));
        }
        let size = if self.raw[i] { dtype.size() } else { self.b.types[i].size() };
        let kept = view.repeats.then_some(self.program.kept as u16);
        let d = match kept {
            Some(_) => {
                self.program.kept += 1;
                self.tile(Home::Register { size, kept: true })
            }
            None => self.destination(i, size),
        };
        let step = Step::Fetch { view: index, d: 0, pass, size: dtype.size() as u8, grid, kept };
        self.draft(rate, step, [Some(d), None, None, None], memory + 40 + 300 * grid as u32);
        d
    }

    fn emit_coordinates(&mut self, i: usize) -> Value {
        let view = self.view_of_inst[i].expect("coordinates have views");
        let d = self.destination(i, 8);
        // A coordinate that is the same for the whole launch is 0, as its splat is.
        let one = self.rates[i] == Rate::Tile;
        if self.rates[i] != Rate::Launch {
            let step = Step::Coordinates { view, d: 0, one };
            self.draft(self.rates[i], step, [Some(d), None, None, None], 100);
        }
        d
    }

    fn emit_stores_of(&mut self, i: usize) {
        for k in 0..self.b.stores.len() {
            if self.b.stores[k].1.0 as usize == i {
                let value = self.emit(i);
                self.emit_store(k, value);
            }
        }
    }

    fn emit_store(&mut self, k: usize, value: Value) {
        let (place, Reg(r)) = &self.b.stores[k];
        let index = (self.first_store + k) as u16;
        let size = place.dtype.size();
        self.program.cost += 50 * size as u64;
        if let Value::Tile(t) = value
            && self.homes[t as usize] == Home::View(index)
        {
            return;
        }
        let pass = if self.raw[*r as usize] { None } else { convert::store(place.dtype, self.level) };
        let access = self.layout.views[index as usize].access;
        let rate = self.rates[*r as usize];
        if let (Value::Splat(_), Access::Linear | Access::Splat) = (value, access) {
            let mut value = value;
            if let Some(pass) = pass {
                let d = self.splat(0);
                let step = Step::Pass1 { pass, d: 0, a: 0, one: true };
                self.draft(rate, step, [Some(d), Some(value), None, None], 0);
                value = d;
            }
            let d = self.tile(Home::View(index));
            let step = Step::Pass1 { pass: map::fill(self.level, size), d: 0, a: 0, one: false };
            self.draft(Rate::Element, step, [Some(d), Some(value), None, None], 0);
        } else if access != Access::Grid {
            let d = self.tile(Home::View(index));
            let step = Step::Pass1 { pass: convert::or_copy(pass, place.dtype), d: 0, a: 0, one: false };
            self.draft(Rate::Element, step, [Some(d), Some(value), None, None], 30);
        } else {
            let one = matches!(value, Value::Splat(_));
            let step = Step::Scatter { view: index, a: 0, pass, size: size as u8, one };
            self.draft(Rate::Element, step, [None, Some(value), None, None], 300);
        }
    }

    /// Numbers the slots and lays tiles out in scratch memory: one that nobody reads any more makes room.
    fn assign(mut self) -> Program {
        let splats = self.program.splats.len();
        let slot = |v: Value| match v {
            Value::Splat(i) => i,
            Value::Tile(i) => splats as u16 + i,
        };
        let elements = self.layout.rows * self.layout.cols;
        let mut last_use = vec![0; self.homes.len()];
        for (at, draft) in self.drafts.iter().enumerate() {
            for value in draft.values.iter().flatten() {
                if let Value::Tile(t) = value {
                    last_use[*t as usize] = at;
                }
            }
        }
        let mut scratch = 0;
        let mut free: Vec<(usize, usize)> = Vec::new();
        let mut offset: Vec<Option<usize>> = vec![None; self.homes.len()];
        let reserve = |scratch: &mut usize, size: usize| {
            // A line more than a power of two: tiles do not compete for the same sets of the cache.
            let at = *scratch;
            *scratch += (elements * size).next_multiple_of(64) + 128;
            at
        };
        for at in 0..self.drafts.len() {
            if let Some(Value::Tile(t)) = self.drafts[at].values[0]
                && let Home::Register { size, kept } = self.homes[t as usize]
                && offset[t as usize].is_none()
            {
                let position = if kept { None } else { free.iter().position(|f| f.1 == size) };
                let place = match position {
                    Some(p) => free.swap_remove(p).0,
                    None => reserve(&mut scratch, size),
                };
                offset[t as usize] = Some(place);
            }
            let mut released = [None; 4];
            for (k, value) in self.drafts[at].values.iter().enumerate() {
                if let Some(Value::Tile(t)) = value
                    && last_use[*t as usize] == at
                    && let Home::Register { size, kept: false } = self.homes[*t as usize]
                    && let Some(place) = offset[*t as usize]
                    && !released.contains(&Some((place, size)))
                {
                    released[k] = Some((place, size));
                }
            }
            free.extend(released.iter().flatten());
        }
        let number = |draft: &Draft| {
            let v = |k: usize| draft.values[k].map_or(0, slot);
            let mut step = draft.step;
            match &mut step {
                Step::Pass1 { d, a, .. } => (*d, *a) = (v(0), v(1)),
                Step::Pass2 { d, a, b, .. } => (*d, *a, *b) = (v(0), v(1), v(2)),
                Step::Pass3 { d, c, a, b, .. } => (*d, *c, *a, *b) = (v(0), v(1), v(2), v(3)),
                Step::CheckDivisor { b, .. } => *b = v(1),
                Step::Fetch { d, .. } | Step::Coordinates { d, .. } | Step::Splat { d, .. } => *d = v(0),
                Step::Scatter { a, .. } => *a = v(1),
            }
            step
        };
        self.program.once = self.once.iter().map(number).collect();
        self.program.steps = self.drafts.iter().map(number).collect();
        for (t, home) in self.homes.iter().enumerate() {
            let s = slot(Value::Tile(t as u16));
            match home {
                Home::View(view) => self.program.bound.push((s, *view)),
                Home::Register { .. } => self.program.tiles.extend(offset[t].map(|o| (s, o))),
            }
        }
        self.program.slots = splats + self.homes.len();
        let stages = |s: &Step| matches!(s, Step::Fetch { grid: true, pass: Some(_), .. } | Step::Scatter { .. });
        self.program.staging = scratch;
        if self.program.steps.iter().any(stages) {
            reserve(&mut scratch, 8);
        }
        self.program.scratch = scratch;
        self.program
    }
}

/// The scalars of a launch as splats.
pub fn set_scalars(program: &Program, scalars: &[Scalar], splats: &mut [u64]) {
    for (slot, index, dtype) in &program.scalars {
        splats[*slot as usize] = convert::splat(scalars[*index], *dtype);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_follows_operands() {
        let mut b = Builder::new(&[4]);
        let x = b.load(0, DType::F32, &[1]);
        let y = b.unary(neuron_ir::UnaryOp::Exp, x);
        b.unary(neuron_ir::UnaryOp::Sin, x);
        b.store(1, y, DType::F32, &[1]);
        assert_eq!(live(&b), [true, true, false]);
    }
}
