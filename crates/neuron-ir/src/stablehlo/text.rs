//! StableHLO as text, one operation at a time: names, types and syntax, no meaning.

use crate::{DType, Scalar};
use std::fmt::Write;

/// An element type of StableHLO: those of tensors, and the unsigned words that bits are handled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum El {
    I1,
    I8,
    I16,
    I32,
    I64,
    U8,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
    F8E5M2,
    F8E4M3,
}

impl El {
    pub fn name(self) -> &'static str {
        match self {
            El::I1 => "i1",
            El::I8 => "i8",
            El::I16 => "i16",
            El::I32 => "i32",
            El::I64 => "i64",
            El::U8 => "ui8",
            El::U32 => "ui32",
            El::U64 => "ui64",
            El::F16 => "f16",
            El::BF16 => "bf16",
            El::F32 => "f32",
            El::F64 => "f64",
            El::F8E5M2 => "f8E5M2",
            El::F8E4M3 => "f8E4M3FN",
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, El::F16 | El::BF16 | El::F32 | El::F64 | El::F8E5M2 | El::F8E4M3)
    }

    /// The type that arithmetic on tensors of this type is carried out in.
    pub fn compute(self) -> El {
        match self {
            El::F16 | El::BF16 | El::F8E5M2 | El::F8E4M3 => El::F32,
            El::I8 | El::I16 | El::I32 | El::U8 => El::I64,
            other => other,
        }
    }

    /// Bits of infinity and of a NaN, and of the sign.
    fn special_bits(self) -> Option<(u64, u64, u64)> {
        match self {
            El::F16 => Some((0x7c00, 0x7e00, 0x8000)),
            El::BF16 => Some((0x7f80, 0x7fc0, 0x8000)),
            El::F32 => Some((0x7f80_0000, 0x7fc0_0000, 0x8000_0000)),
            El::F64 => Some((0x7ff0 << 48, 0x7ff8 << 48, 1 << 63)),
            _ => None,
        }
    }
}

impl From<DType> for El {
    fn from(dtype: DType) -> El {
        match dtype {
            DType::U8 => El::U8,
            DType::I8 => El::I8,
            DType::I16 => El::I16,
            DType::I32 => El::I32,
            DType::I64 => El::I64,
            DType::F16 => El::F16,
            DType::F32 => El::F32,
            DType::F64 => El::F64,
            DType::Bool => El::I1,
            DType::BF16 => El::BF16,
            DType::F8E5M2 => El::F8E5M2,
            DType::F8E4M3 => El::F8E4M3,
        }
    }
}

/// A value of the text: what it is called and its type.
#[derive(Clone, Debug)]
pub(super) struct V {
    pub name: String,
    pub el: El,
    pub dims: Vec<i64>,
}

impl V {
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    pub fn numel(&self) -> i64 {
        self.dims.iter().product()
    }

    pub fn ty(&self) -> String {
        type_name(self.el, &self.dims)
    }
}

/// `tensor<2x3xf32>`
pub(super) fn type_name(el: El, dims: &[i64]) -> String {
    let mut s = String::from("tensor<");
    for d in dims {
        let _ = write!(s, "{d}x");
    }
    s + el.name() + ">"
}

fn list(items: &[i64]) -> String {
    items.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

/// `array<i64: 1, 2>`
fn array(items: &[i64]) -> String {
    if items.is_empty() { "array<i64>".into() } else { format!("array<i64: {}>", list(items)) }
}

fn names(values: &[&V]) -> String {
    values.iter().map(|v| v.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn types(values: &[&V]) -> String {
    values.iter().map(|v| v.ty()).collect::<Vec<_>>().join(", ")
}

/// How a dimension of a window operation is walked.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowDim {
    pub size: i64,
    pub stride: i64,
    pub dilation: i64,
    pub base_dilation: i64,
    pub low: i64,
    pub high: i64,
}

impl WindowDim {
    /// A dimension that windows do not reach along.
    pub const ONE: WindowDim = WindowDim { size: 1, stride: 1, dilation: 1, base_dilation: 1, low: 0, high: 0 };
}

/// Dimension numbers of a gather or scatter; a gather's offset dimensions are a scatter's window dimensions.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexNumbers {
    pub offset_dims: Vec<i64>,
    pub collapsed: Vec<i64>,
    pub index_map: Vec<i64>,
    pub vector_dim: i64,
}

/// The body of a function under construction.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub body: String,
    next: usize,
    depth: usize,
}

impl Text {
    fn line(&mut self, text: &str) {
        let indent = 4 + 2 * self.depth;
        let _ = writeln!(self.body, "{:indent$}{text}", "");
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next - 1)
    }

    /// Adds `%n = right`.
    fn define(&mut self, el: El, dims: &[i64], right: &str) -> V {
        let name = self.fresh();
        self.line(&format!("{name} = {right}"));
        V { name, el, dims: dims.to_vec() }
    }

    // --- leaves ----------------------------------------------------------------------------------------------------

    /// A tensor of one value.
    pub fn splat(&mut self, el: El, dims: &[i64], value: Scalar) -> V {
        let text = literal(el, value);
        self.define(el, dims, &format!("stablehlo.constant dense<{text}> : {}", type_name(el, dims)))
    }

    /// A tensor of one number, of the type and shape of `a`.
    pub fn like(&mut self, a: &V, value: f64) -> V {
        self.splat(a.el, &a.dims, Scalar::F64(value))
    }

    /// As [`Text::like`], of an integer.
    pub fn like_int(&mut self, a: &V, value: i64) -> V {
        self.splat(a.el, &a.dims, Scalar::I64(value))
    }

    /// A tensor of one dimension.
    pub fn row(&mut self, el: El, values: &[Scalar]) -> V {
        let dims = [values.len() as i64];
        let items: Vec<String> = values.iter().map(|v| literal(el, *v)).collect();
        let text = if items.is_empty() { String::new() } else { format!("[{}]", items.join(", ")) };
        self.define(el, &dims, &format!("stablehlo.constant dense<{text}> : {}", type_name(el, &dims)))
    }

    pub fn iota(&mut self, el: El, dims: &[i64], dim: usize) -> V {
        if dims.is_empty() {
            return self.splat(el, dims, Scalar::I64(0));
        }
        self.define(el, dims, &format!("stablehlo.iota dim = {dim} : {}", type_name(el, dims)))
    }

    // --- elementwise -----------------------------------------------------------------------------------------------

    pub fn un(&mut self, op: &str, a: &V) -> V {
        self.define(a.el, &a.dims, &format!("stablehlo.{op} {} : {}", a.name, a.ty()))
    }

    /// An operation that asks something of each element.
    pub fn un_predicate(&mut self, op: &str, a: &V) -> V {
        let to = type_name(El::I1, &a.dims);
        self.define(El::I1, &a.dims, &format!("stablehlo.{op} {} : ({}) -> {to}", a.name, a.ty()))
    }

    /// An operation of CHLO, which compilers expand before anything else.
    pub fn chlo(&mut self, op: &str, operands: &[&V]) -> V {
        let a = operands[0];
        let text = format!("chlo.{op} {} : {} -> {}", names(operands), types(operands), a.ty());
        self.define(a.el, &a.dims, &text)
    }

    pub fn bin(&mut self, op: &str, a: &V, b: &V) -> V {
        debug_assert_eq!((a.el, &a.dims), (b.el, &b.dims), "{op}");
        self.define(a.el, &a.dims, &format!("stablehlo.{op} {}, {} : {}", a.name, b.name, a.ty()))
    }

    pub fn add(&mut self, a: &V, b: &V) -> V {
        self.bin("add", a, b)
    }

    pub fn sub(&mut self, a: &V, b: &V) -> V {
        self.bin("subtract", a, b)
    }

    pub fn mul(&mut self, a: &V, b: &V) -> V {
        self.bin("multiply", a, b)
    }

    pub fn div(&mut self, a: &V, b: &V) -> V {
        self.bin("divide", a, b)
    }

    pub fn and(&mut self, a: &V, b: &V) -> V {
        self.bin("and", a, b)
    }

    pub fn or(&mut self, a: &V, b: &V) -> V {
        self.bin("or", a, b)
    }

    pub fn not(&mut self, a: &V) -> V {
        self.un("not", a)
    }

    /// `a` and a number.
    pub fn bin_num(&mut self, op: &str, a: &V, b: f64) -> V {
        let b = self.like(a, b);
        self.bin(op, a, &b)
    }

    /// `a` and an integer.
    pub fn bin_int(&mut self, op: &str, a: &V, b: i64) -> V {
        let b = self.like_int(a, b);
        self.bin(op, a, &b)
    }

    /// `direction` is `EQ`, `NE`, `LT`, `LE`, `GT` or `GE`.
    pub fn compare(&mut self, direction: &str, a: &V, b: &V) -> V {
        debug_assert_eq!((a.el, &a.dims), (b.el, &b.dims), "compare {direction}");
        let to = type_name(El::I1, &a.dims);
        let text = format!("stablehlo.compare {direction}, {}, {} : ({}, {}) -> {to}", a.name, b.name, a.ty(), b.ty());
        self.define(El::I1, &a.dims, &text)
    }

    pub fn compare_num(&mut self, direction: &str, a: &V, b: f64) -> V {
        let b = self.like(a, b);
        self.compare(direction, a, &b)
    }

    pub fn compare_int(&mut self, direction: &str, a: &V, b: i64) -> V {
        let b = self.like_int(a, b);
        self.compare(direction, a, &b)
    }

    pub fn is_nan(&mut self, a: &V) -> V {
        if a.el.is_float() { self.compare("NE", a, a) } else { self.splat(El::I1, &a.dims, Scalar::I64(0)) }
    }

    pub fn select(&mut self, c: &V, a: &V, b: &V) -> V {
        debug_assert_eq!((a.el, &a.dims), (b.el, &b.dims), "select");
        debug_assert_eq!((c.el, &c.dims), (El::I1, &a.dims), "select");
        self.define(
            a.el,
            &a.dims,
            &format!("stablehlo.select {}, {}, {} : {}, {}", c.name, a.name, b.name, c.ty(), a.ty()),
        )
    }

    /// `a` where `c`, else a number.
    pub fn select_num(&mut self, c: &V, a: &V, b: f64) -> V {
        let b = self.like(a, b);
        self.select(c, a, &b)
    }

    /// StableHLO's own conversion; nothing where the type is that already.
    pub fn convert(&mut self, a: &V, el: El) -> V {
        if a.el == el {
            return a.clone();
        }
        self.define(el, &a.dims, &format!("stablehlo.convert {} : ({}) -> {}", a.name, a.ty(), type_name(el, &a.dims)))
    }

    /// The same bits as another type of the same width.
    pub fn bitcast(&mut self, a: &V, el: El) -> V {
        let text = format!("stablehlo.bitcast_convert {} : ({}) -> {}", a.name, a.ty(), type_name(el, &a.dims));
        self.define(el, &a.dims, &text)
    }

    // --- movement --------------------------------------------------------------------------------------------------

    /// Operand dimension `i` becomes result dimension `along[i]`.
    pub fn broadcast_in(&mut self, a: &V, along: &[i64], dims: &[i64]) -> V {
        if a.dims == dims {
            return a.clone();
        }
        let text = format!(
            "stablehlo.broadcast_in_dim {}, dims = [{}] : ({}) -> {}",
            a.name,
            list(along),
            a.ty(),
            type_name(a.el, dims)
        );
        self.define(a.el, dims, &text)
    }

    /// Aligned at the last dimensions, as PyTorch broadcasts.
    pub fn broadcast(&mut self, a: &V, dims: &[i64]) -> V {
        let missing = dims.len() - a.rank();
        let along: Vec<i64> = (0..a.rank()).map(|i| (i + missing) as i64).collect();
        self.broadcast_in(a, &along, dims)
    }

    pub fn reshape(&mut self, a: &V, dims: &[i64]) -> V {
        if a.dims == dims {
            return a.clone();
        }
        self.define(a.el, dims, &format!("stablehlo.reshape {} : ({}) -> {}", a.name, a.ty(), type_name(a.el, dims)))
    }

    pub fn transpose(&mut self, a: &V, permutation: &[i64]) -> V {
        if permutation.iter().enumerate().all(|(i, p)| i as i64 == *p) {
            return a.clone();
        }
        let dims: Vec<i64> = permutation.iter().map(|p| a.dims[*p as usize]).collect();
        let text = format!(
            "stablehlo.transpose {}, dims = [{}] : ({}) -> {}",
            a.name,
            list(permutation),
            a.ty(),
            type_name(a.el, &dims)
        );
        self.define(a.el, &dims, &text)
    }

    /// Positions `start`, `start + step`, .. along `dim`, `count` of them.
    pub fn slice(&mut self, a: &V, dim: usize, start: i64, count: i64, step: i64) -> V {
        if start == 0 && count == a.dims[dim] && step == 1 {
            return a.clone();
        }
        let mut dims = a.dims.clone();
        dims[dim] = count;
        let ranges: Vec<String> = (0..a.rank())
            .map(|d| match d == dim {
                true if count == 0 => "0:0".into(),
                true if step == 1 => format!("{start}:{}", start + count),
                true => format!("{start}:{}:{step}", start + (count - 1) * step + 1),
                false => format!("0:{}", a.dims[d]),
            })
            .collect();
        let text =
            format!("stablehlo.slice {} [{}] : ({}) -> {}", a.name, ranges.join(", "), a.ty(), type_name(a.el, &dims));
        self.define(a.el, &dims, &text)
    }

    /// Pads with a number; negative amounts cut off.
    pub fn pad(&mut self, a: &V, value: f64, low: &[i64], high: &[i64], interior: &[i64]) -> V {
        if low.iter().chain(high).chain(interior).all(|x| *x == 0) {
            return a.clone();
        }
        let value = self.splat(a.el, &[], Scalar::F64(value));
        let dims: Vec<i64> =
            (0..a.rank()).map(|d| a.dims[d] + (a.dims[d] - 1).max(0) * interior[d] + low[d] + high[d]).collect();
        let text = format!(
            "stablehlo.pad {}, {}, low = [{}], high = [{}], interior = [{}] : ({}, {}) -> {}",
            a.name,
            value.name,
            list(low),
            list(high),
            list(interior),
            a.ty(),
            value.ty(),
            type_name(a.el, &dims)
        );
        self.define(a.el, &dims, &text)
    }

    pub fn concat(&mut self, parts: &[&V], dim: usize) -> V {
        if parts.len() == 1 {
            return parts[0].clone();
        }
        let mut dims = parts[0].dims.clone();
        dims[dim] = parts.iter().map(|p| p.dims[dim]).sum();
        let el = parts[0].el;
        let text = format!(
            "stablehlo.concatenate {}, dim = {dim} : ({}) -> {}",
            names(parts),
            types(parts),
            type_name(el, &dims)
        );
        self.define(el, &dims, &text)
    }

    pub fn reverse(&mut self, a: &V, dims: &[i64]) -> V {
        if dims.is_empty() {
            return a.clone();
        }
        self.define(a.el, &a.dims, &format!("stablehlo.reverse {}, dims = [{}] : {}", a.name, list(dims), a.ty()))
    }

    // --- products --------------------------------------------------------------------------------------------------

    /// The last two dimensions multiplied as matrices, the others in step.
    pub fn matmul(&mut self, a: &V, b: &V) -> V {
        let batch = a.rank() - 2;
        let mut dims = a.dims.clone();
        dims[batch + 1] = b.dims[batch + 1];
        let numbers: Vec<i64> = (0..batch as i64).collect();
        let batching = match batch {
            0 => String::new(),
            _ => format!("batching_dims = [{0}] x [{0}], ", list(&numbers)),
        };
        let text = format!(
            "stablehlo.dot_general {}, {}, {batching}contracting_dims = [{}] x [{}], precision = [HIGHEST, HIGHEST] : \
             ({}, {}) -> {}",
            a.name,
            b.name,
            batch + 1,
            batch,
            a.ty(),
            b.ty(),
            type_name(a.el, &dims)
        );
        self.define(a.el, &dims, &text)
    }

    /// A convolution of `[b, f, ..]` and `[o, i, ..]` with dimension numbers of its own in `numbers`.
    pub fn convolution(
        &mut self,
        a: &V,
        b: &V,
        numbers: &str,
        windows: &[WindowDim],
        groups: [i64; 2],
        dims: &[i64],
    ) -> V {
        let each = |f: fn(&WindowDim) -> i64| array(&windows.iter().map(f).collect::<Vec<_>>());
        let padding: Vec<String> = windows.iter().map(|w| format!("[{}, {}]", w.low, w.high)).collect();
        let text = format!(
            "\"stablehlo.convolution\"({}, {}) <{{window_strides = {}, padding = dense<[{}]> : tensor<{}x2xi64>, \
             lhs_dilation = {}, rhs_dilation = {}, dimension_numbers = #stablehlo.conv<{numbers}>, \
             feature_group_count = {} : i64, batch_group_count = {} : i64, \
             precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}}> : ({}, {}) -> {}",
            a.name,
            b.name,
            each(|w| w.stride),
            padding.join(", "),
            windows.len(),
            each(|w| w.base_dilation),
            each(|w| w.dilation),
            groups[0],
            groups[1],
            a.ty(),
            b.ty(),
            type_name(a.el, dims)
        );
        self.define(a.el, dims, &text)
    }

    // --- reductions ------------------------------------------------------------------------------------------------

    /// Reduced over `over` with an operation of StableHLO, whose dimensions then are gone.
    pub fn reduce(&mut self, op: &str, a: &V, init: Scalar, over: &[i64]) -> V {
        if over.is_empty() {
            return a.clone();
        }
        let init = self.splat(a.el, &[], init);
        let dims: Vec<i64> = (0..a.rank()).filter(|d| !over.contains(&(*d as i64))).map(|d| a.dims[d]).collect();
        let text = format!(
            "stablehlo.reduce({} init: {}) applies stablehlo.{op} across dimensions = [{}] : ({}, {}) -> {}",
            a.name,
            init.name,
            list(over),
            a.ty(),
            init.ty(),
            type_name(a.el, &dims)
        );
        self.define(a.el, &dims, &text)
    }

    /// The sum over `over`, whose dimensions stay with an extent of 1.
    pub fn sum(&mut self, a: &V, over: &[i64]) -> V {
        self.reduce_kept("add", a, Scalar::I64(0), over)
    }

    /// As [`Text::reduce`], the dimensions staying with an extent of 1.
    pub fn reduce_kept(&mut self, op: &str, a: &V, init: Scalar, over: &[i64]) -> V {
        let reduced = self.reduce(op, a, init, over);
        let dims: Vec<i64> = (0..a.rank()).map(|d| if over.contains(&(d as i64)) { 1 } else { a.dims[d] }).collect();
        self.reshape(&reduced, &dims)
    }

    /// The sum over `over`, expanded to the operand's shape again.
    pub fn sum_over(&mut self, a: &V, over: &[i64]) -> V {
        let s = self.sum(a, over);
        self.broadcast(&s, &a.dims)
    }

    /// Opens `names = "op"(operands) ({`; regions, [`Text::finish`] follow.
    fn open(&mut self, op: &str, operands: &[&V], results: usize) -> String {
        let name = self.fresh();
        let count = if results > 1 { format!(":{results}") } else { String::new() };
        self.line(&format!("{name}{count} = \"stablehlo.{op}\"({}) ({{", names(operands)));
        name
    }

    /// A region of 0-dimensional or other arguments of the given types.
    fn region(&mut self, arguments: &[(El, Vec<i64>)], body: impl FnOnce(&mut Text, &[V]) -> Vec<V>) {
        self.depth += 1;
        let arguments: Vec<V> =
            arguments.iter().map(|(el, dims)| V { name: self.fresh(), el: *el, dims: dims.clone() }).collect();
        let header: Vec<String> = arguments.iter().map(|a| format!("{}: {}", a.name, a.ty())).collect();
        self.depth -= 1;
        self.line(&format!("^bb0({}):", header.join(", ")));
        self.depth += 1;
        let results = body(self, &arguments);
        let results: Vec<&V> = results.iter().collect();
        self.line(&format!("stablehlo.return {} : {}", names(&results), types(&results)));
        self.depth -= 1;
    }

    fn finish(&mut self, name: &str, tail: &str, operands: &[&V], results: &[(El, Vec<i64>)]) -> Vec<V> {
        let to: Vec<String> = results.iter().map(|(el, dims)| type_name(*el, dims)).collect();
        let attributes = if tail.is_empty() { String::new() } else { format!(" {{{tail}}}") };
        self.line(&format!("}}){attributes} : ({}) -> ({})", types(operands), to.join(", ")));
        let many = results.len() > 1;
        (0..results.len())
            .map(|i| V {
                name: if many { format!("{name}#{i}") } else { name.to_string() },
                el: results[i].0,
                dims: results[i].1.clone(),
            })
            .collect()
    }

    /// Several tensors of one shape reduced together along `dim`, which then is gone. `combine` gets the elements of
    /// both sides, one after the other.
    pub fn reduce_together(
        &mut self,
        values: &[&V],
        inits: &[Scalar],
        dim: usize,
        combine: impl FnOnce(&mut Text, &[V], &[V]) -> Vec<V>,
    ) -> Vec<V> {
        let n = values.len();
        let inits: Vec<V> = (0..n).map(|i| self.splat(values[i].el, &[], inits[i])).collect();
        let operands: Vec<&V> = values.iter().copied().chain(&inits).collect();
        let name = self.open("reduce", &operands, n);
        let elements: Vec<(El, Vec<i64>)> = values.iter().chain(values).map(|v| (v.el, vec![])).collect();
        self.region(&elements, |t, args| combine(t, &args[..n], &args[n..]));
        let mut dims = values[0].dims.clone();
        dims.remove(dim);
        let results: Vec<_> = values.iter().map(|v| (v.el, dims.clone())).collect();
        self.finish(&name, &format!("dimensions = array<i64: {dim}>"), &operands, &results)
    }

    /// Windows of several tensors of one shape reduced together.
    pub fn reduce_window(
        &mut self,
        values: &[&V],
        inits: &[Scalar],
        windows: &[WindowDim],
        combine: impl FnOnce(&mut Text, &[V], &[V]) -> Vec<V>,
    ) -> Vec<V> {
        let n = values.len();
        let inits: Vec<V> = (0..n).map(|i| self.splat(values[i].el, &[], inits[i])).collect();
        let operands: Vec<&V> = values.iter().copied().chain(&inits).collect();
        let name = self.open("reduce_window", &operands, n);
        let elements: Vec<(El, Vec<i64>)> = values.iter().chain(values).map(|v| (v.el, vec![])).collect();
        self.region(&elements, |t, args| combine(t, &args[..n], &args[n..]));
        let dims: Vec<i64> = windows
            .iter()
            .zip(&values[0].dims)
            .map(|(w, size)| {
                let padded = if *size == 0 { 0 } else { (size - 1) * w.base_dilation + 1 } + w.low + w.high;
                let reach = (w.size - 1) * w.dilation + 1;
                if padded < reach { 0 } else { (padded - reach) / w.stride + 1 }
            })
            .collect();
        let each = |f: fn(&WindowDim) -> i64| array(&windows.iter().map(f).collect::<Vec<_>>());
        let padding: Vec<String> = windows.iter().map(|w| format!("[{}, {}]", w.low, w.high)).collect();
        let tail = format!(
            "window_dimensions = {}, window_strides = {}, base_dilations = {}, window_dilations = {}, \
             padding = dense<[{}]> : tensor<{}x2xi64>",
            each(|w| w.size),
            each(|w| w.stride),
            each(|w| w.base_dilation),
            each(|w| w.dilation),
            padding.join(", "),
            windows.len()
        );
        let results: Vec<_> = values.iter().map(|v| (v.el, dims.clone())).collect();
        self.finish(&name, &tail, &operands, &results)
    }

    /// Tensors of one shape sorted together along `dim`, stably. `before` gets two elements of each, in pairs.
    pub fn sort(&mut self, values: &[&V], dim: usize, before: impl FnOnce(&mut Text, &[V]) -> V) -> Vec<V> {
        let name = self.open("sort", values, values.len());
        let elements: Vec<(El, Vec<i64>)> = values.iter().flat_map(|v| [(v.el, vec![]), (v.el, vec![])]).collect();
        self.region(&elements, |t, args| vec![before(t, args)]);
        let results: Vec<_> = values.iter().map(|v| (v.el, v.dims.clone())).collect();
        self.finish(&name, &format!("dimension = {dim} : i64, is_stable = true"), values, &results)
    }

    /// Repeats `body` while `condition` holds of the state.
    pub fn while_loop(
        &mut self,
        state: &[&V],
        condition: impl FnOnce(&mut Text, &[V]) -> V,
        body: impl FnOnce(&mut Text, &[V]) -> Vec<V>,
    ) -> Vec<V> {
        let name = self.open("while", state, state.len());
        let arguments: Vec<(El, Vec<i64>)> = state.iter().map(|v| (v.el, v.dims.clone())).collect();
        self.region(&arguments, |t, args| vec![condition(t, args)]);
        self.line("}, {");
        self.region(&arguments, body);
        self.finish(&name, "", state, &arguments)
    }

    // --- indexing --------------------------------------------------------------------------------------------------

    /// StableHLO's gather; `slice` are the extents of what each index vector names.
    pub fn gather(&mut self, a: &V, indices: &V, numbers: &IndexNumbers, slice: &[i64], dims: &[i64]) -> V {
        let text = format!(
            "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = [{}], \
             collapsed_slice_dims = [{}], start_index_map = [{}], index_vector_dim = {}>, slice_sizes = {}, \
             indices_are_sorted = false}}> : ({}, {}) -> {}",
            a.name,
            indices.name,
            list(&numbers.offset_dims),
            list(&numbers.collapsed),
            list(&numbers.index_map),
            numbers.vector_dim,
            array(slice),
            a.ty(),
            indices.ty(),
            type_name(a.el, dims)
        );
        self.define(a.el, dims, &text)
    }

    /// StableHLO's scatter, updates combined by an operation of StableHLO, in any order.
    pub fn scatter(&mut self, a: &V, indices: &V, updates: &V, numbers: &IndexNumbers, op: &str) -> V {
        let operands = [a, indices, updates];
        let name = self.open("scatter", &operands, 1);
        self.region(&[(a.el, vec![]), (a.el, vec![])], |t, args| vec![t.bin(op, &args[0], &args[1])]);
        let tail = format!(
            "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [{}], inserted_window_dims = [{}], \
             scatter_dims_to_operand_dims = [{}], index_vector_dim = {}>, indices_are_sorted = false, \
             unique_indices = false",
            list(&numbers.offset_dims),
            list(&numbers.collapsed),
            list(&numbers.index_map),
            numbers.vector_dim
        );
        self.finish(&name, &tail, &operands, &[(a.el, a.dims.clone())]).remove(0)
    }
}

/// A number as an element of a dense constant.
fn literal(el: El, value: Scalar) -> String {
    let decimal = |s: String| match (s.contains('.'), s.find('e')) {
        (true, _) => s,
        (false, Some(e)) => format!("{}.0{}", &s[..e], &s[e..]),
        (false, None) => s + ".0",
    };
    match el {
        El::I1 => (value.to_f64() != 0.0).to_string(),
        El::U64 => (value.to_i64() as u64).to_string(),
        El::U32 => (value.to_i64() as u32).to_string(),
        _ if !el.is_float() => value.to_i64().to_string(),
        _ => {
            let v = value.to_f64();
            // Rounded to the type first, so that the digits are those of the element.
            let v = if el == El::F64 { v } else { v as f32 as f64 };
            match el.special_bits() {
                Some((infinity, nan, sign)) if !v.is_finite() => {
                    let bits = if v.is_nan() { nan } else { infinity };
                    let bits = if v == f64::NEG_INFINITY { bits | sign } else { bits };
                    let digits = if el == El::F64 { 16 } else { if el == El::F32 { 8 } else { 4 } };
                    format!("0x{bits:0digits$X}")
                }
                _ if el == El::F64 => decimal(format!("{v:?}")),
                _ => decimal(format!("{:?}", v as f32)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_of_the_type() {
        assert_eq!(literal(El::F32, Scalar::F64(0.1)), "0.1");
        assert_eq!(literal(El::F32, Scalar::F64(1e-30)), "1.0e-30");
        assert_eq!(literal(El::F64, Scalar::I64(3)), "3.0");
        assert_eq!(literal(El::F32, Scalar::F64(f64::NEG_INFINITY)), "0xFF800000");
        assert_eq!(literal(El::BF16, Scalar::F64(f64::NAN)), "0x7FC0");
        assert_eq!(literal(El::U64, Scalar::I64(-1)), "18446744073709551615");
        assert_eq!(literal(El::I1, Scalar::I64(1)), "true");
    }
}
