// The convolutions of narrow groups and of few output channels that linked_convolution.cpp calls.
#include "linked_tile.h"

#include "conv.h"

KH_NAMESPACE {

template void conv_depthwise(const ConvShape&, const Pixels&, const float*, const Tile&);
template void conv_narrow<2>(const ConvShape&, const Pixels&, const float*, const Tile&);
template void conv_narrow<4>(const ConvShape&, const Pixels&, const float*, const Tile&);
template void conv_narrow<8>(const ConvShape&, const Pixels&, const float*, const Tile&);
template void conv_direct<1>(const ConvShape&, const Pixels&, const float*, const Tile&);
template void conv_direct<2>(const ConvShape&, const Pixels&, const float*, const Tile&);
template void conv_direct<3>(const ConvShape&, const Pixels&, const float*, const Tile&);

}  // namespace kh
