module {
  func.func public @main(%arg0: tensor<2x3xbf16>, %arg1: tensor<3xbf16>, %arg2: tensor<f32>) -> (tensor<2x3xbf16>) {
    %0 = stablehlo.convert %arg0 : (tensor<2x3xbf16>) -> tensor<2x3xf32>
    %1 = stablehlo.convert %arg1 : (tensor<3xbf16>) -> tensor<3xf32>
    %2 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %3 = stablehlo.multiply %1, %2 : tensor<3xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
    %5 = stablehlo.add %0, %4 : tensor<2x3xf32>
    %6 = stablehlo.convert %5 : (tensor<2x3xf32>) -> tensor<2x3xbf16>
    return %6 : tensor<2x3xbf16>
  }
}
