module {
  func.func public @main(%arg0: tensor<2x4x6x6xf32>, %arg1: tensor<6x2x3x3xf32>) -> (tensor<2x6x3x3xf32>, tensor<2x4x6x6xf32>, tensor<6x2x3x3xf32>) {
    %0 = "stablehlo.convolution"(%arg0, %arg1) <{window_strides = array<i64: 2, 2>, padding = dense<[[1, 1], [1, 1]]> : tensor<2x2xi64>, lhs_dilation = array<i64: 1, 1>, rhs_dilation = array<i64: 1, 1>, dimension_numbers = #stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>, feature_group_count = 2 : i64, batch_group_count = 1 : i64, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}> : (tensor<2x4x6x6xf32>, tensor<6x2x3x3xf32>) -> tensor<2x6x3x3xf32>
    %1 = stablehlo.reshape %arg1 : (tensor<6x2x3x3xf32>) -> tensor<2x3x2x3x3xf32>
    %2 = stablehlo.transpose %1, dims = [0, 2, 1, 3, 4] : (tensor<2x3x2x3x3xf32>) -> tensor<2x2x3x3x3xf32>
    %3 = stablehlo.reshape %2 : (tensor<2x2x3x3x3xf32>) -> tensor<4x3x3x3xf32>
    %4 = stablehlo.reverse %3, dims = [2, 3] : tensor<4x3x3x3xf32>
    %5 = "stablehlo.convolution"(%0, %4) <{window_strides = array<i64: 1, 1>, padding = dense<[[1, 2], [1, 2]]> : tensor<2x2xi64>, lhs_dilation = array<i64: 2, 2>, rhs_dilation = array<i64: 1, 1>, dimension_numbers = #stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>, feature_group_count = 2 : i64, batch_group_count = 1 : i64, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}> : (tensor<2x6x3x3xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x6x6xf32>
    %6 = "stablehlo.convolution"(%arg0, %0) <{window_strides = array<i64: 1, 1>, padding = dense<[[1, 0], [1, 0]]> : tensor<2x2xi64>, lhs_dilation = array<i64: 1, 1>, rhs_dilation = array<i64: 2, 2>, dimension_numbers = #stablehlo.conv<[f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1]>, feature_group_count = 1 : i64, batch_group_count = 2 : i64, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}> : (tensor<2x4x6x6xf32>, tensor<2x6x3x3xf32>) -> tensor<6x2x3x3xf32>
    return %0, %5, %6 : tensor<2x6x3x3xf32>, tensor<2x4x6x6xf32>, tensor<6x2x3x3xf32>
  }
}
