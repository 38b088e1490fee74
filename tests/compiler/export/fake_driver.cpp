// A GPU driver that starts nothing: it writes what it is asked for, one line a call, to the file $KERNELS_HUB_FAKE_DRIVER.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// "sizes" of the parameters of the next launch, one digit each, come with the binary: "fake <sizes>".
char sizes[64];

void note(const char* text) {
  std::FILE* file = std::fopen(std::getenv("KERNELS_HUB_FAKE_DRIVER"), "a");
  std::fputs(text, file);
  std::fclose(file);
}

}  // namespace

extern "C" int cuModuleLoadData(void** module, const void* image) {
  const char* text = static_cast<const char*>(image);
  if (std::strncmp(text, "fake ", 5) != 0) return 209;  // CUDA_ERROR_NO_BINARY_FOR_GPU
  std::strncpy(sizes, text + 5, sizeof sizes - 1);
  *module = reinterpret_cast<void*>(0x10);
  note("load\n");
  return 0;
}

extern "C" int cuModuleGetFunction(void** function, void* module, const char* name) {
  char line[256];
  std::snprintf(line, sizeof line, "function %lx %s\n", reinterpret_cast<unsigned long>(module), name);
  note(line);
  *function = reinterpret_cast<void*>(0x20);
  return 0;
}

extern "C" int cuFuncSetAttribute(void* function, int attribute, int value) {
  char line[256];
  std::snprintf(line, sizeof line, "attribute %lx %d %d\n", reinterpret_cast<unsigned long>(function), attribute, value);
  note(line);
  return 0;
}

extern "C" int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  if (gx == 13) return 1;  // CUDA_ERROR_INVALID_VALUE
  char line[1024];
  int at = std::snprintf(line, sizeof line, "launch %lx grid %u %u %u block %u %u %u shared %u stream %lx extra %d :",
                         reinterpret_cast<unsigned long>(function), gx, gy, gz, bx, by, bz, shared,
                         reinterpret_cast<unsigned long>(stream), extra != nullptr);
  for (int i = 0; sizes[i] == '4' || sizes[i] == '8'; ++i) {
    long long value = 0;
    if (sizes[i] == '4') {
      int narrow;
      std::memcpy(&narrow, parameters[i], 4);
      value = narrow;
    } else {
      std::memcpy(&value, parameters[i], 8);
    }
    at += std::snprintf(line + at, sizeof line - at, " %lld", value);
  }
  std::snprintf(line + at, sizeof line - at, "\n");
  note(line);
  return 0;
}
