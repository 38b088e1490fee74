// The attention of linked.h for narrow floats.
#include "linked_attention.h"

KH_NAMESPACE {

KH_ATTENTION(bf16)
KH_ATTENTION(f16)

}  // namespace kh
