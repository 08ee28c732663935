use super::*;
use crate::index::reference::{Cases, Tensor, coordinates, run};

/// A random convolution.
struct Case {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    groups: i64,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
}

impl Case {
    fn windows(&self) -> Windows<'_> {
        Windows { stride: &self.stride, padding: &self.padding, dilation: &self.dilation, groups: self.groups }
    }
}

const TYPES: [DType; 7] = [DType::F32, DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64];

/// Where the weight's channel and kernel position `k` of output `at` read.
fn reads(case: &Case, at: &[i64], k: &[i64], ic: i64, oc: i64) -> Option<Vec<i64>> {
    let mut from = vec![at[0], at[1] / oc * ic + k[0]];
    from.extend(
        (0..case.stride.len()).map(|d| at[d + 2] * case.stride[d] + k[d + 1] * case.dilation[d] - case.padding[d]),
    );
    (2..from.len()).all(|d| (0..case.input.tensor.sizes[d]).contains(&from[d])).then_some(from)
}

fn draw(cases: &mut Cases, contiguous: bool) -> Case {
    let spatial = 1 + cases.below(3) as usize;
    let groups = 1 + cases.below(3);
    let wide = cases.below(3) == 0;
    let channels = |c: &mut Cases| if wide { 1 + c.below(40) } else { 1 + c.below(4) };
    let (batch, ic, oc) = (cases.below(4), channels(cases), channels(cases));
    let mut many = |low: i64, n: i64| -> Vec<i64> { (0..spatial).map(|_| low + cases.below(n)).collect() };
    let (kernel, stride, padding, dilation) = (many(1, 3), many(1, 3), many(0, 3), many(1, 2));
    let extra = many(0, if spatial == 1 { 400 } else { 9 });
    // Large enough for one output position.
    let extent = |d: usize| ((kernel[d] - 1) * dilation[d] + 1 - 2 * padding[d]).max(1) + extra[d];
    let sizes: Vec<i64> = (0..spatial).map(extent).collect();
    let out_extent = |d: usize| (sizes[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
    let out_sizes: Vec<i64> = (0..spatial).map(out_extent).collect();
    let dtype = cases.pick(&TYPES);
    let input = cases.tensor(dtype, &[&[batch, ic * groups], &sizes[..]].concat(), |c| c.below(3) - 1);
    let weight_sizes = [&[oc * groups, ic], &kernel[..]].concat();
    let weight = match contiguous {
        true => cases.strided(TensorType::contiguous(dtype, &weight_sizes), |c| c.below(3) - 1),
        false => cases.tensor(dtype, &weight_sizes, |c| c.below(3) - 1),
    };
    let bias = cases.strided(TensorType::contiguous(dtype, &[oc * groups]), |c| c.below(5));
    let out_sizes = [&[batch, oc * groups], &out_sizes[..]].concat();
    let out = match contiguous {
        true => cases.strided(TensorType::contiguous(dtype, &out_sizes), |c| c.below(3) - 1),
        false => cases.tensor(dtype, &out_sizes, |_| 7),
    };
    Case { stride, padding, dilation, groups, input, weight, bias, out }
}

#[test]
fn convolutions_agree_with_their_definition() {
    let mut cases = Cases::new(31);
    for number in 0..150 {
        let case = draw(&mut cases, false);
        let dtype = case.input.tensor.dtype;
        let with_bias = cases.below(2) == 0;
        let (w, b) = (&case.weight, with_bias.then_some(dtype));
        let kernel =
            Convolution::new(&case.input.tensor, &w.tensor, b, case.windows(), false, &case.out.tensor).unwrap();
        let mut tensors = vec![&case.input, w, &case.bias, &case.out];
        if !with_bias {
            tensors.remove(2);
        }
        run(&kernel, &tensors, &[]).unwrap();
        let (ic, oc) = (w.tensor.sizes[1], w.tensor.sizes[0] / case.groups);
        for at in case.out.coordinates() {
            let mut expected = if with_bias { case.bias.get(&[at[1]]) } else { 0 };
            for k in coordinates(&w.tensor.sizes[1..]) {
                if let Some(from) = reads(&case, &at, &k, ic, oc) {
                    expected += case.input.get(&from) * w.get(&[&at[1..2], &k[..]].concat());
                }
            }
            assert_eq!(round(expected, dtype), case.out.get(&at), "case {number}: {kernel:?} at {at:?}");
        }
    }
}

/// What is left of a sum in a narrow type.
fn round(value: i64, dtype: DType) -> i64 {
    match dtype {
        DType::BF16 => bf16::from_f32(value as f32).to_f32() as i64,
        _ => value,
    }
}

#[test]
fn transposed_convolutions_are_the_gradient_of_the_input() {
    let mut cases = Cases::new(32);
    for number in 0..150 {
        let mut case = draw(&mut cases, true);
        let w = &case.weight;
        let (grad, dtype) = (&case.out, case.out.tensor.dtype);
        let (ic, oc) = (w.tensor.sizes[1], w.tensor.sizes[0] / case.groups);
        let mut expected = vec![0; case.input.values().len()];
        let sizes = case.input.tensor.sizes.clone();
        for at in grad.coordinates() {
            for k in coordinates(&w.tensor.sizes[1..]) {
                if let Some(from) = reads(&case, &at, &k, ic, oc) {
                    let i = from.iter().zip(&sizes).fold(0, |i, (c, n)| i * n + c);
                    expected[i as usize] += grad.get(&at) * w.get(&[&at[1..2], &k[..]].concat());
                }
            }
        }
        let kernel = Convolution::new(&grad.tensor, &w.tensor, None, case.windows(), true, &case.input.tensor).unwrap();
        run(&kernel, &[grad, w, &case.input], &[]).unwrap();
        let expected: Vec<i64> = expected.into_iter().map(|v| round(v, dtype)).collect();
        assert_eq!(case.input.values(), expected, "case {number}: {kernel:?}");
        case.groups = 1;
    }
}

#[test]
fn gradients_of_the_weight_agree_with_their_definition() {
    let mut cases = Cases::new(33);
    for number in 0..150 {
        let case = draw(&mut cases, true);
        let (w, grad, dtype) = (&case.weight, &case.out, case.out.tensor.dtype);
        let (ic, oc) = (w.tensor.sizes[1], w.tensor.sizes[0] / case.groups);
        let mut expected = vec![0; w.values().len()];
        for at in grad.coordinates() {
            for (i, k) in coordinates(&w.tensor.sizes[1..]).iter().enumerate() {
                if let Some(from) = reads(&case, &at, k, ic, oc) {
                    let row: i64 = w.tensor.sizes[1..].iter().product();
                    expected[(at[1] * row) as usize + i] += grad.get(&at) * case.input.get(&from);
                }
            }
        }
        let kernel =
            ConvolutionWeightGradient::new(&case.input.tensor, &grad.tensor, case.windows(), &w.tensor).unwrap();
        run(&kernel, &[&case.input, grad, w], &[]).unwrap();
        let expected: Vec<i64> = expected.into_iter().map(|v| round(v, dtype)).collect();
        assert_eq!(w.values(), expected, "case {number}: {kernel:?}");
    }
}

#[test]
fn other_types_and_shapes_are_refused() {
    let t = |dtype, sizes: &[i64]| TensorType::contiguous(dtype, sizes);
    let new = |dtype, out: &[i64], groups| {
        let (input, weight) = (t(dtype, &[1, 4, 8]), t(dtype, &[6, 2, 3]));
        let windows = Windows { stride: &[1], padding: &[0], dilation: &[1], groups };
        Convolution::new(&input, &weight, None, windows, false, &t(dtype, out))
    };
    assert!(new(DType::F32, &[1, 6, 6], 2).is_ok());
    assert!(new(DType::F32, &[1, 5, 6], 2).is_err() && new(DType::F32, &[1, 6, 6], 1).is_err());
    assert!(new(DType::Bool, &[1, 6, 6], 2).is_err() && new(DType::I32, &[1, 6, 6], 2).is_err());
}
