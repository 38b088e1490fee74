// The weight guard of layers that keep copies of weights, as a library of its own.
#include "weight_guard.h"
