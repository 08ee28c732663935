//! What stays with PyTorch's CPU kernels by decision.
//!
//! Everything else that falls back is a gap. The page of supported operators is written from this table, and a test runs
//! each operator of it: one that no longer falls back does not belong here.

/// Operators that run on the CPU for one reason.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Heading of the group.
    pub family: &'static str,
    /// Why, as `torch_neuronx.get_fallback_reasons()` says it.
    pub reason: &'static str,
    /// Names of the operators without their overloads; each covers all overloads.
    pub names: &'static [&'static str],
}

/// The whole table.
pub const DECLARED: &[Declared] = &[
    Declared {
        family: "Dense linear algebra",
        reason: "dense linear algebra stays with PyTorch's LAPACK kernels",
        names: &[
            "aten::_cholesky_solve_helper",
            "aten::_linalg_det",
            "aten::_linalg_eigh",
            "aten::_linalg_eigvals",
            "aten::_linalg_slogdet",
            "aten::_linalg_solve_ex",
            "aten::_linalg_svd",
            "aten::cholesky_inverse",
            "aten::geqrf",
            "aten::linalg_cholesky_ex",
            "aten::linalg_eig",
            "aten::linalg_eigvals",
            "aten::linalg_householder_product",
            "aten::linalg_inv_ex",
            "aten::linalg_ldl_factor_ex",
            "aten::linalg_ldl_solve",
            "aten::linalg_lstsq",
            "aten::linalg_lu",
            "aten::linalg_lu_factor_ex",
            "aten::linalg_lu_solve",
            "aten::linalg_matrix_exp",
            "aten::linalg_matrix_sqrth",
            "aten::linalg_polar",
            "aten::linalg_qr",
            "aten::linalg_solve_triangular",
            "aten::lu_unpack",
            "aten::ormqr",
            "aten::triangular_solve",
        ],
    },
    Declared {
        family: "Fourier transforms",
        reason: "Fourier transforms stay with PyTorch's CPU kernels",
        names: &["aten::_fft_c2c", "aten::_fft_c2r", "aten::_fft_r2c"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn no_operator_is_both_declared_and_lowered() {
        for entry in table() {
            let base = entry.name.split('.').next().unwrap();
            assert!(DECLARED.iter().all(|d| !d.names.contains(&base)), "{}", entry.name);
        }
    }

    #[test]
    fn names_are_sorted_and_unique() {
        for d in DECLARED {
            assert!(d.names.is_sorted_by(|a, b| a < b), "{}", d.family);
        }
    }
}
