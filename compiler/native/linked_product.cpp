// The products of linked.h.
#include "linked_product.h"

KH_NAMESPACE {

KH_PRODUCTS(float)

}  // namespace kh
