// Captured graphs: describing their inputs and outputs, and binding new ones at a replay.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <unordered_map>

#include "allocator.h"
#include "errors.h"
#include "generator.h"
#include "module.h"
#include "tensor.h"

namespace neuron {

namespace {

std::vector<at::Tensor> unpack(PyObject* list) {
  TORCH_CHECK_TYPE(PyList_Check(list), "expected a list of tensors");
  std::vector<at::Tensor> tensors;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* t = PyList_GET_ITEM(list, i);
    TORCH_CHECK_TYPE(THPVariable_Check(t), "expected a tensor, got ", Py_TYPE(t)->tp_name);
    tensors.push_back(THPVariable_Unpack(t));
  }
  return tensors;
}

// The bytes from the first element to the end of the last.
int64_t reach(const at::Tensor& t) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.dtype().itemsize()));
}

NeuronTensor describe(const at::Tensor& t) {
  NeuronTensor d{};
  d.address = const_cast<void*>(t.const_data_ptr());
  d.bytes = reach(t);
  d.dtype = static_cast<int32_t>(t.scalar_type());
  d.rank = static_cast<int32_t>(t.dim());
  d.offset = t.storage_offset();
  d.sizes = t.sizes().data();
  d.strides = t.strides().data();
  return d;
}

NeuronGraph* finish(PyObject* input_list, PyObject* output_list) {
  const auto inputs = unpack(input_list);
  const auto outputs = unpack(output_list);
  std::vector<NeuronTensor> given;
  std::vector<NeuronTensor> made;
  std::vector<NeuronTensor> storages;
  for (const auto& t : inputs) {
    given.push_back(describe(t));
  }
  std::unordered_map<c10::StorageImpl*, int32_t> numbers;
  for (const auto& t : outputs) {
    auto* storage = t.storage().unsafeGetStorageImpl();
    const auto [found, is_new] = numbers.emplace(storage, static_cast<int32_t>(storages.size()));
    if (is_new) {
      NeuronTensor d{};
      d.address = const_cast<void*>(storage->data());
      d.bytes = static_cast<int64_t>(storage->nbytes());
      storages.push_back(d);
    }
    made.push_back(describe(t));
    made.back().storage = found->second;
  }
  NeuronGraph* graph = nullptr;
  check(neuron_graph_finish(
      given.data(), given.size(), made.data(), made.size(), storages.data(), storages.size(), &graph));
  return graph;
}

bool fits(const at::Tensor& t, const NeuronTensor& d, c10::DeviceIndex device) {
  const auto rank = static_cast<size_t>(d.rank);
  return is_neuron(t.unsafeGetTensorImpl()) && t.device().index() == device &&
         t.scalar_type() == static_cast<c10::ScalarType>(d.dtype) && t.sizes() == c10::IntArrayRef(d.sizes, rank) &&
         t.strides() == c10::IntArrayRef(d.strides, rank) && !t.is_conj() && !t.is_neg();
}

PyObject* replay(const NeuronGraph* graph, PyObject* input_list) {
  const NeuronTensor* inputs = nullptr;
  const NeuronTensor* outputs = nullptr;
  const size_t* storage_bytes = nullptr;
  const uint64_t* random = nullptr;
  size_t counts[4];
  const auto device =
      static_cast<c10::DeviceIndex>(neuron_graph_describe(graph, &inputs, &outputs, &storage_bytes, &random, &counts));
  const auto tensors = unpack(input_list);
  if (tensors.size() != counts[0]) {
    Py_RETURN_NONE;
  }
  c10::SmallVector<void*, 32> addresses;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!fits(tensors[i], inputs[i], device)) {
      Py_RETURN_NONE;
    }
    addresses.push_back(const_cast<void*>(tensors[i].const_data_ptr()));
  }
  c10::SmallVector<at::Tensor, 8> blocks;
  c10::SmallVector<void*, 8> storages;
  for (size_t i = 0; i < counts[2]; ++i) {
    const int64_t size = static_cast<int64_t>(storage_bytes[i]);
    const int64_t stride = 1;
    blocks.push_back(make_tensor(at::kByte, {size}, {stride}, true, storage_bytes[i], device));
    storages.push_back(blocks.back().mutable_data_ptr());
  }
  c10::SmallVector<std::array<uint64_t, 2>, 8> seeds;
  for (size_t i = 0; i < counts[3]; ++i) {
    const auto [seed, offset] = reserve_philox(std::nullopt, device, random[i]);
    seeds.push_back({seed, offset});
  }
  check(neuron_graph_launch(
      graph, addresses.data(), storages.data(), reinterpret_cast<const uint64_t (*)[2]>(seeds.data()), device,
      neuron_current_stream(device)));
  THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(counts[1])));
  for (size_t i = 0; list && i < counts[1]; ++i) {
    const auto& d = outputs[i];
    const auto rank = static_cast<size_t>(d.rank);
    auto t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(blocks[d.storage].storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(d.dtype)));
    t.unsafeGetTensorImpl()->set_sizes_and_strides({d.sizes, rank}, {d.strides, rank}, d.offset);
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(std::move(t)));
  }
  return list.release();
}

} // namespace

} // namespace neuron

extern "C" bool neuron_capture_finish(PyObject* inputs, PyObject* outputs, NeuronGraph** graph) {
  HANDLE_TH_ERRORS
  *graph = neuron::finish(inputs, outputs);
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

extern "C" PyObject* neuron_capture_replay(const NeuronGraph* graph, PyObject* inputs) {
  HANDLE_TH_ERRORS
  return neuron::replay(graph, inputs);
  END_HANDLE_TH_ERRORS
}
