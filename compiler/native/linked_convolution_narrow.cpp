// The convolutions of linked.h for narrow floats.
#include "linked_convolution.h"

KH_NAMESPACE {

KH_CONVOLUTIONS(bf16)
KH_CONVOLUTIONS(f16)

}  // namespace kh
