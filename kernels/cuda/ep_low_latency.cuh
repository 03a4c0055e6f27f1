// What both kernels of low latency share. Fixed slots, nothing counted first, one kernel there (ep_slots_sm90.cu) and one back
// (ep_back_sm90.cu), both fit for graphs.
//
// `phases`: 1 sends, 2 receives, 3 both in one launch.
// A slot is written again two results later: a member sends only when the destination has read its slots (SLOT_DONE), told long before.
// Launches may be programmatic: what is read before wait_for_predecessors is the group's record, written by the host.
#pragma once
#include "ep.cuh"

namespace ep {

struct Sent {
  const int *ids;
  int ids_stride;
  const float *weights;
  int weights_stride;
  int tokens;
};

constexpr u32 SEND = 1, RECEIVE = 2;
constexpr int GROUP_WORDS = sizeof(Group) / 8;

/// The group's record on its way to shared memory: loaded first, stored when other loads are on their way too.
struct Staged {
  u64 word[3];
};
DEVICE Staged load_group(const Group *from) {
  Staged s;
#pragma unroll
  for (int j = 0; j < 3; j++) {
    const int i = threadIdx.x + j * blockDim.x;
    s.word[j] = i < GROUP_WORDS ? reinterpret_cast<const u64 *>(from)[i] : 0;
  }
  return s;
}
/// A barrier must follow.
DEVICE void store_group(const Group *from, const Staged &s, u64 *words) {
#pragma unroll
  for (int j = 0; j < 3; j++) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i < GROUP_WORDS) words[i] = s.word[j];
  }
  for (int i = threadIdx.x + 3 * blockDim.x; i < GROUP_WORDS; i += blockDim.x) words[i] = reinterpret_cast<const u64 *>(from)[i];
}

DEVICE int owner_of(const Group *g, int expert) {
  int m = 0;
  for (int d = 1; d < (int)g->size; d++) m += expert >= (int)g->first_expert[d];
  return m;
}

} // namespace ep
