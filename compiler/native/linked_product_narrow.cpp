// The products of linked.h for narrow floats.
#include "linked_product.h"

KH_NAMESPACE {

KH_PRODUCTS(bf16)
KH_PRODUCTS(f16)

}  // namespace kh
