module {
  func.func public @main(%arg0: tensor<2x3xf32>) -> (tensor<2x1xf32>, tensor<2x1xi64>) {
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    %2 = stablehlo.reshape %1 : (tensor<2xf32>) -> tensor<2x1xf32>
    %3 = stablehlo.iota dim = 1 : tensor<2x3xi64>
    %4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %5 = stablehlo.constant dense<9223372036854775807> : tensor<i64>
    %6:2 = "stablehlo.reduce"(%arg0, %3, %4, %5) ({
    ^bb0(%7: tensor<f32>, %8: tensor<i64>, %9: tensor<f32>, %10: tensor<i64>):
      %11 = stablehlo.compare GT, %9, %7 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %12 = stablehlo.compare EQ, %7, %9 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %13 = stablehlo.compare NE, %7, %7 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %14 = stablehlo.compare NE, %9, %9 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %15 = stablehlo.and %13, %14 : tensor<i1>
      %16 = stablehlo.not %13 : tensor<i1>
      %17 = stablehlo.and %14, %16 : tensor<i1>
      %18 = stablehlo.or %11, %17 : tensor<i1>
      %19 = stablehlo.or %12, %15 : tensor<i1>
      %20 = stablehlo.compare LT, %10, %8 : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %21 = stablehlo.and %19, %20 : tensor<i1>
      %22 = stablehlo.or %18, %21 : tensor<i1>
      %23 = stablehlo.select %22, %9, %7 : tensor<i1>, tensor<f32>
      %24 = stablehlo.select %22, %10, %8 : tensor<i1>, tensor<i64>
      stablehlo.return %23, %24 : tensor<f32>, tensor<i64>
    }) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<2x3xi64>, tensor<f32>, tensor<i64>) -> (tensor<2xf32>, tensor<2xi64>)
    %25 = stablehlo.reshape %6#1 : (tensor<2xi64>) -> tensor<2x1xi64>
    return %2, %25 : tensor<2x1xf32>, tensor<2x1xi64>
  }
}
