// The attention of linked.h for float.
#include "linked_attention.h"

KH_NAMESPACE {

KH_ATTENTION(float)

}  // namespace kh
