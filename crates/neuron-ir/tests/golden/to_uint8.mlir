module {
  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xui8>) {
    %0 = stablehlo.constant dense<-2147483600.0> : tensor<4xf32>
    %1 = stablehlo.compare GE, %arg0, %0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %2 = stablehlo.constant dense<2147483600.0> : tensor<4xf32>
    %3 = stablehlo.compare LT, %arg0, %2 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %4 = stablehlo.and %1, %3 : tensor<4xi1>
    %5 = stablehlo.constant dense<0.0> : tensor<4xf32>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<4xi1>, tensor<4xf32>
    %7 = stablehlo.convert %6 : (tensor<4xf32>) -> tensor<4xi64>
    %8 = stablehlo.constant dense<-2147483648> : tensor<4xi64>
    %9 = stablehlo.select %4, %7, %8 : tensor<4xi1>, tensor<4xi64>
    %10 = stablehlo.convert %9 : (tensor<4xi64>) -> tensor<4xui8>
    return %10 : tensor<4xui8>
  }
}
