//! Windows of one dimension, written out.

use neuron_ir::Window;
use std::ops::Range;

/// Where the window of each output starts and ends in the input.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// First element, end, and extent with padding counted.
    pub spans: Vec<Span>,
    /// Distance between elements of a window.
    pub dilation: usize,
    /// Outputs whose windows are complete and `stride` apart.
    pub regular: Range<usize>,
    pub stride: usize,
}

/// One window; empty where `end <= start`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub start: i32,
    pub end: i32,
    pub padded: i32,
}

impl Windows {
    pub fn new(window: Window, input: i64, output: i64) -> Windows {
        match window {
            Window::Adaptive if output > 0 && input % output == 0 && input > 0 => {
                let kernel = input / output;
                Windows::new(Window::Strided { kernel, stride: kernel, padding: 0, dilation: 1 }, input, output)
            }
            Window::Adaptive => {
                let spans = (0..output).map(|o| {
                    let start = o * input / output;
                    let end = ((o + 1) * input + output - 1) / output;
                    Span { start: start as i32, end: end as i32, padded: (end - start) as i32 }
                });
                Windows { spans: spans.collect(), dilation: 1, regular: 0..0, stride: 1 }
            }
            Window::Strided { kernel, stride, padding, dilation } => {
                let reach = (kernel - 1) * dilation + 1;
                let span = |o: i64| {
                    let from = o * stride - padding;
                    // Over the padding by whole steps, so that the elements stay those of the window.
                    let start = if from < 0 { from + (-from + dilation - 1) / dilation * dilation } else { from };
                    let end = (from + reach).min(input);
                    let padded = (from + kernel).min(input + padding) - from;
                    Span { start: start as i32, end: end as i32, padded: padded as i32 }
                };
                let complete = |o: &i64| o * stride >= padding && o * stride - padding + reach <= input;
                let first = (0..output).find(complete).unwrap_or(output);
                let count = (first..output).take_while(complete).count();
                let regular = first as usize..first as usize + count;
                Windows {
                    spans: (0..output).map(span).collect(),
                    dilation: dilation as usize,
                    regular,
                    stride: stride as usize,
                }
            }
        }
    }

    /// Outputs whose windows hold each element of an input of `extent`.
    pub fn cover(&self, extent: usize) -> Vec<Range<usize>> {
        let mut cover = vec![0..0; extent];
        for (o, span) in self.spans.iter().enumerate() {
            for i in span.start..span.end {
                let range: &mut Range<usize> = &mut cover[i as usize];
                *range = if range.start == range.end { o } else { range.start }..o + 1;
            }
        }
        cover
    }
}
