module {
  func.func public @main(%arg0: tensor<5x2xf32>, %arg1: tensor<3x2xi64>, %arg2: tensor<3x2xf32>) -> (tensor<5x2xf32>) {
    %0 = stablehlo.iota dim = 1 : tensor<3x2xi64>
    %1 = stablehlo.reshape %arg1 : (tensor<3x2xi64>) -> tensor<3x2x1xi64>
    %2 = stablehlo.reshape %0 : (tensor<3x2xi64>) -> tensor<3x2x1xi64>
    %3 = stablehlo.concatenate %1, %2, dim = 2 : (tensor<3x2x1xi64>, tensor<3x2x1xi64>) -> tensor<3x2x2xi64>
    %4 = stablehlo.iota dim = 0 : tensor<6xi64>
    %5 = stablehlo.reshape %4 : (tensor<6xi64>) -> tensor<3x2xi64>
    %6 = stablehlo.constant dense<-1> : tensor<5x2xi64>
    %7 = "stablehlo.scatter"(%6, %3, %5) ({
    ^bb0(%8: tensor<i64>, %9: tensor<i64>):
      %10 = stablehlo.maximum %8, %9 : tensor<i64>
      stablehlo.return %10 : tensor<i64>
    }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>, indices_are_sorted = false, unique_indices = false} : (tensor<5x2xi64>, tensor<3x2x2xi64>, tensor<3x2xi64>) -> (tensor<5x2xi64>)
    %11 = stablehlo.reshape %arg2 : (tensor<3x2xf32>) -> tensor<6xf32>
    %12 = stablehlo.constant dense<0> : tensor<5x2xi64>
    %13 = stablehlo.compare GE, %7, %12 : (tensor<5x2xi64>, tensor<5x2xi64>) -> tensor<5x2xi1>
    %14 = stablehlo.constant dense<0> : tensor<5x2xi64>
    %15 = stablehlo.select %13, %7, %14 : tensor<5x2xi1>, tensor<5x2xi64>
    %16 = "stablehlo.gather"(%11, %15) <{dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1>, indices_are_sorted = false}> : (tensor<6xf32>, tensor<5x2xi64>) -> tensor<5x2xf32>
    %17 = stablehlo.select %13, %16, %arg0 : tensor<5x2xi1>, tensor<5x2xf32>
    return %17 : tensor<5x2xf32>
  }
}
