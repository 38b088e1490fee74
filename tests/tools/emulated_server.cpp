// Calls functions of a shared object for a process of another machine: see emulated.py, which speaks its protocol.
//
// A request: the function's name; buffers; what points to where in them; the arguments, 64 bits each. A reply: what the
// function returned, and the buffers as it left them. Numbers are little-endian, 64 bits. A buffer ends where a page
// ends that nobody may touch, as far as its alignment lets it, so that a kernel that reads too far dies here.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kPage = 4096, kAlignment = 64;  // of torch's allocator, too

[[noreturn]] void fail(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}

void receive(void* to, uint64_t size) {
  if (size != 0 && std::fread(to, 1, size, stdin) != size) fail("request", "it ends early");
}
uint64_t number() {
  uint64_t value;
  receive(&value, sizeof value);
  return value;
}
void send(const void* from, uint64_t size) {
  if (size != 0 && std::fwrite(from, 1, size, stdout) != size) fail("reply", "cannot be written");
}

struct Buffer {
  explicit Buffer(uint64_t bytes) : size(bytes) {
    const uint64_t used = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    mapped = (used + kPage - 1) / kPage * kPage + kPage;
    void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap", "no memory");
    base = static_cast<char*>(memory);
    if (mprotect(base + mapped - kPage, kPage, PROT_NONE) != 0) fail("mprotect", "failed");
    data = base + mapped - kPage - used;
  }
  char *base, *data;
  uint64_t size, mapped;
};

using Function = uint64_t (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
constexpr uint64_t kArguments = 8;

void serve(void* library, uint64_t length) {
  std::string name(length, '\0');
  receive(name.data(), length);
  std::vector<Buffer> buffers;
  for (uint64_t count = number(); count > 0; --count) {
    buffers.emplace_back(number());
    receive(buffers.back().data, buffers.back().size);
  }
  for (uint64_t count = number(); count > 0; --count) {
    const uint64_t in = number(), at = number(), to = number(), offset = number();
    *reinterpret_cast<char**>(buffers.at(in).data + at) = buffers.at(to).data + offset;
  }
  uint64_t arguments[kArguments] = {};
  const uint64_t count = number();
  if (count > kArguments) fail(name.c_str(), "too many arguments");
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t is_address = number(), buffer = number(), value = number();
    arguments[i] = is_address ? reinterpret_cast<uint64_t>(buffers.at(buffer).data + value) : value;
  }
  const auto function = reinterpret_cast<Function>(dlsym(library, name.c_str()));
  const uint64_t is_there = function != nullptr;
  send(&is_there, sizeof is_there);
  if (is_there) {
    const auto& a = arguments;
    const uint64_t result = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    send(&result, sizeof result);
    for (const Buffer& buffer : buffers) send(buffer.data, buffer.size);
  }
  for (const Buffer& buffer : buffers) munmap(buffer.base, buffer.mapped);
  std::fflush(stdout);
}

}  // namespace

// emulated_server OBJECT RUNTIME: with an OpenMP runtime that is loaded first, as PyTorch's is.
int main(int count, char** arguments) {
  if (count != 3) fail("usage", "emulated_server OBJECT RUNTIME");
  if (dlopen(arguments[2], RTLD_NOW) == nullptr) fail(arguments[2], dlerror());
  void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(arguments[1], dlerror());
  for (uint64_t length; std::fread(&length, sizeof length, 1, stdin) == 1;) serve(library, length);
}
