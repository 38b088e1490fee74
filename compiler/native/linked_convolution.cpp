// The convolutions of linked.h for float.
#include "linked_convolution.h"

KH_NAMESPACE {

KH_CONVOLUTIONS(float)

}  // namespace kh
