// The C interface between the PyTorch glue in this folder and the Rust crates (crates/torch-neuronx/src/abi).
//
// Conventions: functions that can fail return a NeuronStatus; the message of the calling thread's last failure is
// neuron_error_message(). No function throws, none takes the GIL, all may be called from any thread. Devices are
// indices from 0; streams are ids unique within a device, 0 the default stream. Sizes are in bytes.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Which exception a failure becomes in Python.
typedef enum NeuronStatus {
  NEURON_OK = 0,
  NEURON_ERROR = 1,           // RuntimeError
  NEURON_INDEX_ERROR = 2,     // IndexError
  NEURON_VALUE_ERROR = 3,     // ValueError
  NEURON_TYPE_ERROR = 4,      // TypeError
  NEURON_NOT_IMPLEMENTED = 5, // NotImplementedError
  NEURON_OUT_OF_MEMORY = 6,   // torch.OutOfMemoryError
  NEURON_UNSUPPORTED = 7,     // no lowering or kernel: fall back to the CPU; never reaches Python
  NEURON_INTERRUPTED = 8,     // a wait ended because the interrupt check said so; its exception is already set
} NeuronStatus;

const char* neuron_error_message(void);
// Asked every 50 ms of a wait, on the waiting thread and with no lock held; nonzero ends the wait. Null: no question.
void neuron_set_interrupt_check(int (*check)(void));

// --- devices -------------------------------------------------------------------------------------------------------
int32_t neuron_device_count(void);             // starts nothing, never fails, also in a forked child
bool neuron_is_initialized(void);              // true once memory was allocated or work launched
NeuronStatus neuron_init(void);                // fails in a forked child of an initialized process
bool neuron_in_bad_fork(void);
int32_t neuron_current_device(void);           // of the calling thread
NeuronStatus neuron_set_device(int32_t device);
NeuronStatus neuron_check_device(int32_t device); // "Device index 9 is out of range. Valid range is 0 to 3 ..."
const char* neuron_device_name(void);          // target profile: "trn2"
NeuronStatus neuron_total_memory(int32_t device, uint64_t* bytes);
void neuron_set_launch_blocking(bool blocking); // every launch runs to completion and returns its own error
bool neuron_launch_blocking(void);
void neuron_shutdown(void); // at exit: finishes all work and ends the threads; later frees do nothing

// --- streams -------------------------------------------------------------------------------------------------------
uint64_t neuron_current_stream(int32_t device); // of the calling thread
NeuronStatus neuron_set_current_stream(int32_t device, uint64_t stream);
NeuronStatus neuron_stream_new(int32_t device, int32_t priority, uint64_t* stream); // from a pool, round robin
int32_t neuron_stream_priority(uint64_t stream); // 0 normal, -1 high
NeuronStatus neuron_stream_query(int32_t device, uint64_t stream, bool* done);
NeuronStatus neuron_stream_synchronize(int32_t device, uint64_t stream); // raises the stream's pending error, once
NeuronStatus neuron_device_synchronize(int32_t device);

// --- events --------------------------------------------------------------------------------------------------------
typedef struct NeuronEvent NeuronEvent;
NeuronStatus neuron_event_create(int32_t device, bool timing, NeuronEvent** event);
void neuron_event_destroy(NeuronEvent* event);
NeuronStatus neuron_event_record(NeuronEvent* event, int32_t device, uint64_t stream);
NeuronStatus neuron_event_block(NeuronEvent* event, int32_t device, uint64_t stream); // stream waits for event
NeuronStatus neuron_event_query(const NeuronEvent* event, bool* done);
NeuronStatus neuron_event_synchronize(NeuronEvent* event);
NeuronStatus neuron_event_elapsed(const NeuronEvent* start, const NeuronEvent* end, double* milliseconds);

// --- device memory -------------------------------------------------------------------------------------------------
// Stream-ordered: a freed block is reused by later work of the stream it was allocated on, without waiting.
NeuronStatus neuron_alloc(int32_t device, uint64_t stream, size_t size, void** address);
void neuron_free(void* address);
NeuronStatus neuron_record_stream(void* address, int32_t device, uint64_t stream);
int32_t neuron_device_of(const void* address); // also of interior addresses; -1: not device memory
// The address the host reads device memory at: the same, except under NEURON_PROTECT_DEVICE_MEMORY=1.
void* neuron_host_view(const void* address);
NeuronStatus neuron_empty_cache(int32_t device); // -1: every device
NeuronStatus neuron_memory_info(int32_t device, uint64_t* free, uint64_t* total);

typedef struct NeuronStat {
  int64_t current, peak, allocated, freed;
} NeuronStat;

// Index 0 of each pair of pools is the sum, 1 the small pool, 2 the large pool, as c10's StatType.
typedef struct NeuronMemoryStats {
  NeuronStat allocation[3], segment[3], active[3], inactive_split[3];
  NeuronStat allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3], requested_bytes[3];
  int64_t num_alloc_retries, num_ooms, num_tensor_frees, num_allocation_requests, num_device_alloc, num_device_free;
  int64_t max_split_size;
} NeuronMemoryStats;

NeuronStatus neuron_memory_stats(int32_t device, NeuronMemoryStats* stats);
NeuronStatus neuron_reset_peak_stats(int32_t device);
NeuronStatus neuron_reset_accumulated_stats(int32_t device);

// --- pinned host memory --------------------------------------------------------------------------------------------
// Host memory the device may read and write at any time; freed blocks wait for the events recorded on them.
NeuronStatus neuron_host_alloc(size_t size, void** address);
void neuron_host_free(void* address);
bool neuron_host_is_pinned(const void* address);
NeuronStatus neuron_host_record(void* address, int32_t device, uint64_t stream);
NeuronStatus neuron_host_empty_cache(void);

typedef struct NeuronHostStats {
  NeuronStat allocations, segments, allocated_bytes, reserved_bytes;
  int64_t num_host_alloc, num_host_free;
} NeuronHostStats;

NeuronStatus neuron_host_stats(NeuronHostStats* stats);
void neuron_host_reset_stats(bool peak, bool accumulated);

// --- operators -----------------------------------------------------------------------------------------------------
// A call is described by a key of 64-bit words that says everything but addresses and scalar values; the layout of the
// words is documented in crates/neuron-aten/src/call.rs. A plan is what a key was lowered to.
typedef struct NeuronPlan NeuronPlan;

typedef struct NeuronScalar {
  uint64_t is_integer; // 1: bits hold an int64, 0: bits hold a double
  uint64_t bits;
} NeuronScalar;

typedef struct NeuronOutput {
  int32_t from_argument; // index of the tensor argument this result is, or -1: a new tensor, described below
  int32_t dtype;         // c10::ScalarType; negative: no tensor
  int32_t rank;
  int32_t contiguous;
  int64_t bytes;         // of the storage
  const int64_t* sizes;
  const int64_t* strides;
} NeuronOutput;

// The number of the operator in the table, or -1.
int32_t neuron_op_count(void);
const char* neuron_op_name(int32_t op); // "aten::add.Tensor"
// The plan for this key, or null. The plan lives at least until the calling thread's next look-up.
const NeuronPlan* neuron_plan_find(const uint64_t* key, size_t words);
// Lowers; outputs as the meta kernel gave them. A key without a lowering gives a plan too: see neuron_plan_unsupported.
NeuronStatus neuron_plan_build(
    const uint64_t* key, size_t words, const NeuronOutput* outputs, size_t count, const NeuronPlan** plan);
// Why this key falls back, or null where it was lowered.
const char* neuron_plan_unsupported(const NeuronPlan* plan);
size_t neuron_plan_outputs(const NeuronPlan* plan, const NeuronOutput** outputs);
// Outputs of a random operator consume this many values of the generator; 0: not random. Seed and offset are then the
// last two scalars of the launch.
uint64_t neuron_plan_random(const NeuronPlan* plan);
// addresses: the tensor arguments in order, then the new tensors. Returns at once; errors that depend on values are
// reported by the next synchronizing call.
NeuronStatus neuron_plan_launch(
    const NeuronPlan* plan, void* const* addresses, size_t count, const NeuronScalar* scalars, size_t scalar_count,
    int32_t device, uint64_t stream);

// --- captured graphs -----------------------------------------------------------------------------------------------
// What a thread launched between neuron_capture_begin (crates/torch-neuronx/src/python/capture.rs) and
// neuron_graph_finish, as programs that run on other memory.
typedef struct NeuronGraph NeuronGraph;

typedef struct NeuronTensor {
  void* address;   // of the first element, or of a storage
  int64_t bytes;   // it reaches over, or of the storage
  int32_t storage; // of an output: which of the storages
  int32_t dtype;   // c10::ScalarType
  int32_t rank;
  int32_t reserved;
  int64_t offset; // in elements, within the storage
  const int64_t* sizes;
  const int64_t* strides;
} NeuronTensor;

// A null graph: it cannot be replayed; the message says why.
NeuronStatus neuron_graph_finish(
    const NeuronTensor* inputs, size_t input_count, const NeuronTensor* outputs, size_t output_count,
    const NeuronTensor* storages, size_t storage_count, NeuronGraph** graph);
// Returns the device. Counts: inputs, outputs, storages, random launches.
int32_t neuron_graph_describe(
    const NeuronGraph* graph, const NeuronTensor** inputs, const NeuronTensor** outputs, const size_t** storage_bytes,
    const uint64_t** random, size_t (*counts)[4]);
// seeds: seed and offset for each random launch.
NeuronStatus neuron_graph_launch(
    const NeuronGraph* graph, void* const* inputs, void* const* storages, const uint64_t (*seeds)[2], int32_t device,
    uint64_t stream);

// Waits for earlier work of the stream so that the host may use device memory through neuron_host_view.
NeuronStatus neuron_host_access(int32_t device, uint64_t stream);

// --- op tracking ---------------------------------------------------------------------------------------------------
void neuron_track_executed(const char* op);
// reason: static string or message, why the op ran on the CPU. Returns true the first time for this op (warn then).
bool neuron_track_fallback(const char* op, const char* reason);
// Why the operator runs on the CPU by decision; null where it does not.
const char* neuron_declared_fallback(const char* op);
bool neuron_fallback_forbidden(void); // NEURON_FALLBACK_ENABLED=0

#ifdef __cplusplus
}
#endif
