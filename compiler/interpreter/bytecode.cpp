// Runs programs of bytecode: what generated C++ does, without a compiler.
//
//     void* kh_bytecode_load(const int64_t* words, int64_t count)     a program, from the words that codegen/bytecode makes
//     void kh_bytecode_free(void* program)
//     int kh_bytecode_run(program, buffers, sizes)                    and kh_bytecode_prepare, _packed_bytes, _pack, _step:
//                                                                     as the kh_… of codegen/cpp/translation_unit.py
//     int kh_bytecode_runs(int64_t format)                            whether this is the format of words that it reads
//
// Words are not checked: whoever runs a program trusts it as much as native code. Layers find the functions of their
// module guard here, too.
#include <cstring>
#include <memory>

#include "bytecode_nests.h"
#include "module_guard.h"

KH_NAMESPACE {

namespace bytecode {

// In the order of codegen/bytecode/code.py.
inline constexpr Run kInstructions[] = {view, load, store, gather, scatter, position, inside, bound, between,
                                        select, copy, cast, feed, feed_each, find, repeat, chain, feed_down,
                                        running};
inline constexpr int64_t kCompute = 100;  // and the operations from here on

enum class NumberKind : int64_t { kConstant, kSize, kAdd, kMultiply, kFloorDivide, kRemainder, kMin, kMax };

struct NumberRow {
  NumberKind kind;
  int64_t a, b;
};

// A weight that is laid out once.
struct PackedRow {
  bool is_filter;
  Element element;
  Operand source;
  int32_t k, n, depth_step, column_step, batch;  // of a product; batch: how many matrices
  std::vector<Digit> digits;
  Sizes sizes;  // of a filter
  std::array<int32_t, 5> steps;
};

using Kernel = std::vector<std::unique_ptr<Nest>>;

struct Program {
  uint64_t id = Attending::next_nest();
  bool pool = false, flush = false;
  std::vector<NumberRow> numbers;
  std::vector<PackedRow> packed;
  int64_t buffers = 0;  // without the packed ones
  std::vector<Kernel> prepare, run;
};

class Reader {
 public:
  explicit Reader(const int64_t* words) : at_(words) {}

  int32_t buffers = 0;  // those of the program, and the packed ones

  int64_t word() { return *at_++; }
  int32_t index() { return static_cast<int32_t>(word()); }
  template <class T, class F>
  std::vector<T> list(F&& one) {
    std::vector<T> found;
    const int64_t count = word();
    found.reserve(count);
    for (int64_t i = 0; i < count; ++i) found.push_back(one());
    return found;
  }
  std::vector<int32_t> indices() {
    return list<int32_t>([&] { return index(); });
  }
  template <size_t kCount>
  std::array<int32_t, kCount> array() {
    std::array<int32_t, kCount> found;
    for (int32_t& one : found) one = index();
    return found;
  }
  Element element() { return static_cast<Element>(word()); }
  Operand operand() {
    const int32_t buffer = index();
    return {buffer, index()};
  }
  std::vector<Term> terms() {
    return list<Term>([&] {
      const int32_t variable = index();
      return Term{variable, index()};
    });
  }
  Address place() {
    Address found;
    found.buffer = index(), found.base = index(), found.column_step = index(), found.offset = index();
    found.rows = terms(), found.scalars = terms();
    return found;
  }
  Instruction instruction() {
    Instruction one;
    const int64_t code = word();
    one.to = index(), one.a = index(), one.b = index(), one.c = index();
    one.element = element();
    one.number = index(), one.extra = index();
    if (word() != 0) one.place = place();
    one.guards = list<Guard>([&] {
      Guard guard{place(), 0, 0};
      guard.low = index(), guard.high = index();
      return guard;
    });
    one.links = list<Chained>([&] {
      const int32_t link = index();
      return Chained{link, index()};
    });
    one.run = code < kCompute ? kInstructions[code]
              : one.extra != 0 ? kOperations[code - kCompute].wide
                               : kOperations[code - kCompute].narrow;
    return one;
  }
  Code code() {
    Code found;
    found.most_elements = word();
    found.row_variables = index(), found.scalar_variables = index();
    found.registers = list<RegisterShape>([&] {
      RegisterShape shape{};
      shape.kind = static_cast<RegisterKind>(word());
      shape.rows = word() != 0, shape.columns = word() != 0, shape.slot = word();
      return shape;
    });
    found.constants = list<Constant>([&] {
      const int32_t to = index();
      return Constant{to, word()};
    });
    found.slot_bytes = list<int64_t>([&] { return word(); });
    found.lists = list<std::vector<Instruction>>([&] { return list<Instruction>([&] { return instruction(); }); });
    return found;
  }
  Epilogue epilogue() {
    Epilogue found;
    found.rows.extents = indices(), found.batch.extents = indices();
    found.result = index();
    found.code = code();
    return found;
  }
  std::vector<Digit> digits() {
    return list<Digit>([&] {
      const int32_t extent = index(), a_step = index();
      return Digit{extent, a_step, index()};
    });
  }
  std::unique_ptr<Nest> nest() {
    switch (word()) {
      case 0: return loops();
      case 1: return reducing();
      case 2: return multiplying();
      case 3: return convolving();
      case 4: return attending();
      default: return transforming();
    }
  }
  std::vector<Kernel> kernels() {
    return list<Kernel>([&] { return list<std::unique_ptr<Nest>>([&] { return nest(); }); });
  }
  PackedRow packed() {
    PackedRow row{};
    row.is_filter = word() != 0;
    row.element = element();
    row.source = operand();
    if (row.is_filter) {
      row.sizes = array<22>(), row.steps = array<5>();
    } else {
      row.k = index(), row.n = index(), row.depth_step = index(), row.column_step = index(), row.batch = index();
      row.digits = digits();
    }
    return row;
  }

 private:
  std::unique_ptr<Nest> loops() {
    auto found = std::make_unique<Loops>();
    found->outer.extents = indices();
    found->columns = index();
    found->aligned = word() != 0;
    found->most_rows = word(), found->most_columns = word(), found->work = word();
    found->code = code();
    return found;
  }
  std::unique_ptr<Nest> reducing() {
    auto found = std::make_unique<Reducing>();
    found->outer.extents = indices();
    found->across = word() != 0, found->down = word() != 0;
    found->columns = index(), found->turns_down = index();
    found->work = word();
    found->inner = list<InnerLoop>([&] {
      const int32_t variable = index();
      return InnerLoop{variable, index()};
    });
    found->steps = list<Step>([&] {
      Step step{};
      step.is_pass = word() != 0;
      step.list = index(), step.lean = index(), step.starts = index(), step.ends = index();
      return step;
    });
    found->code = code();
    return found;
  }
  std::unique_ptr<Nest> multiplying() {
    auto found = std::make_unique<Multiplying>();
    found->element = element();
    found->a = operand(), found->b = operand();
    found->packed = index();
    found->batch = index(), found->m = index(), found->n = index(), found->k = index();
    found->a_row = index(), found->a_depth = index(), found->b_depth = index(), found->b_column = index();
    found->digits = digits();
    found->epilogue = epilogue();
    return found;
  }
  std::unique_ptr<Nest> convolving() {
    auto found = std::make_unique<Convolving>();
    found->element = element();
    found->sizes = array<22>();
    found->x = operand(), found->w = operand();
    found->packed = index();
    found->x_steps = array<5>(), found->w_steps = array<5>();
    found->epilogue = epilogue();
    return found;
  }
  std::unique_ptr<Nest> attending() {
    auto found = std::make_unique<Attending>();
    found->element = element();
    found->sizes = array<7>();
    found->causal = word() != 0, found->causal_offset = index();
    found->blank = word() != 0;
    found->weights = static_cast<Weights>(word());
    const int64_t scale = word();
    std::memcpy(&found->scale, &scale, 4);
    for (Operand* one : {&found->q, &found->k, &found->v, &found->out}) *one = operand();
    found->q_steps = array<4>(), found->k_steps = array<4>(), found->v_steps = array<4>();
    found->out_steps = array<4>();
    if ((found->scoring.is_there = word() != 0)) {
      found->scoring.score = index(), found->scoring.result = index();
      found->scoring.code = code();
    }
    if ((found->looking.is_there = word() != 0)) {
      found->looking.plain = word() != 0, found->looking.condition = index();
      found->looking.sizes = array<3>(), found->looking.steps = array<3>();
      found->looking.code = code();
    }
    found->buffers = buffers;
    if (word() != 0) {
      found->space = index();
      found->rest = nest();
    }
    return found;
  }

  std::unique_ptr<Nest> transforming() {
    auto found = std::make_unique<Transforming>();
    found->element = element();
    found->form = static_cast<FourierForm>(word());
    found->inverse = word() != 0;
    found->samples = word(), found->axis = word();
    const int64_t scale = word();
    std::memcpy(&found->scale, &scale, 8);
    found->dims = indices();
    found->real = operand(), found->real_steps = indices();
    if ((found->has_imaginary = word() != 0)) found->imaginary = operand(), found->imaginary_steps = indices();
    found->epilogue = epilogue();
    return found;
  }

  const int64_t* at_;
};

int64_t number_of(const NumberRow& row, const std::vector<int64_t>& known, const int64_t* sizes) {
  switch (row.kind) {
    case NumberKind::kConstant: return row.a;
    case NumberKind::kSize: return sizes[row.a];
    case NumberKind::kAdd: return known[row.a] + known[row.b];
    case NumberKind::kMultiply: return known[row.a] * known[row.b];
    case NumberKind::kFloorDivide: return known[row.b] > 0 ? floor_div(known[row.a], known[row.b]) : 0;
    case NumberKind::kRemainder: return known[row.b] > 0 ? floor_mod(known[row.a], known[row.b]) : 0;
    case NumberKind::kMin: return std::min(known[row.a], known[row.b]);
    case NumberKind::kMax: return std::max(known[row.a], known[row.b]);
  }
  return 0;
}

// The numbers of a call; those of this thread's last one, if it was of the same program and sizes.
const std::vector<int64_t>& numbers_of(const Program& program, const int64_t* sizes) {
  static thread_local std::vector<int64_t> known, with;
  static thread_local uint64_t of = 0;
  bool is_same = of == program.id;
  int64_t count = 0;
  for (const NumberRow& row : program.numbers) {
    if (row.kind != NumberKind::kSize) break;  // sizes stand first
    is_same = is_same && with[count] == sizes[count];
    ++count;
  }
  if (is_same) return known;
  of = program.id;
  with.assign(sizes, sizes + count);
  known.clear();
  for (const NumberRow& row : program.numbers) known.push_back(number_of(row, known, sizes));
  return known;
}

int run_kernel(const Kernel& kernel, void* const* buffers, const int64_t* numbers) {
  int failure = 0;
  for (const std::unique_ptr<Nest>& nest : kernel) nest->run({buffers, numbers, &failure, Attending::next_nest()});
  return failure;
}

// Whose threads run a call, and whether denormal floats count as 0 in it.
class Entered {
 public:
  explicit Entered(const Program& program) : state_(configured(program)) {}

 private:
  static CallState configured(const Program& program) {
    use_pool = program.pool;
    return CallState(program.flush);  // told, not set: other programs run on other threads
  }
  const CallState state_;
};

template <class T>
void pack_product(const PackedRow& row, const T* source, const int64_t* at, float* to) {
  const int64_t size = right_size<T>(at[row.k], at[row.n]);
  for (int64_t matrix = 0; matrix < at[row.batch]; ++matrix) {
    int64_t offset = 0, left = matrix;
    for (size_t digit = row.digits.size(); digit-- > 0;) {
      const int64_t extent = at[row.digits[digit].extent];
      offset += (digit > 0 ? left % extent : left) * at[row.digits[digit].b_step];
      left /= extent;
    }
    pack_right(source + offset, at[row.k], at[row.n], at[row.depth_step], at[row.column_step], to + matrix * size);
  }
}

void pack_one(const PackedRow& row, const Call& call, float* to) {
  with_operand(row.element, [&](auto kind) {
    using T = decltype(kind);
    if (!row.is_filter) return pack_product<T>(row, row.source.at<T>(call), call.numbers, to);
    int64_t steps[5];
    for (int i = 0; i < 5; ++i) steps[i] = call.numbers[row.steps[i]];
    pack_filter(convolution_of(row.sizes, call.numbers), row.source.at<T>(call), steps, to);
  });
}

int64_t packed_floats(const PackedRow& row, const int64_t* at) {
  int64_t found = 0;
  with_operand(row.element, [&](auto kind) {
    using T = decltype(kind);
    found = row.is_filter ? filter_size<T>(convolution_of(row.sizes, at))
                          : at[row.batch] * right_size<T>(at[row.k], at[row.n]);
  });
  return found;
}

}  // namespace bytecode

}  // namespace kh

using kh::bytecode::Program;

extern "C" {

int kh_bytecode_runs(int64_t format) {
  return format == kh::bytecode::kFormat || format == kh::bytecode::kTransforms;
}

void* kh_bytecode_load(const int64_t* words, int64_t) {
  kh::bytecode::Reader reader(words);
  auto program = std::make_unique<Program>();
  program->numbers = reader.list<kh::bytecode::NumberRow>([&] {
    const auto kind = static_cast<kh::bytecode::NumberKind>(reader.word());
    const int64_t a = reader.word();
    return kh::bytecode::NumberRow{kind, a, reader.word()};
  });
  program->buffers = reader.word();
  program->packed = reader.list<kh::bytecode::PackedRow>([&] { return reader.packed(); });
  reader.buffers = static_cast<int32_t>(program->buffers + static_cast<int64_t>(program->packed.size()));
  program->prepare = reader.kernels();
  program->run = reader.kernels();
  return program.release();
}

void kh_bytecode_free(void* program) { delete static_cast<Program*>(program); }

void kh_bytecode_configure(void* program, int use_pool, int flush_denormals) {
  static_cast<Program*>(program)->pool = use_pool != 0;
  static_cast<Program*>(program)->flush = flush_denormals != 0;
}

int64_t kh_bytecode_packed_bytes(const void* program, int64_t which, const int64_t* sizes) {
  const Program& own = *static_cast<const Program*>(program);
  return 4 * packed_floats(own.packed[which], numbers_of(own, sizes).data());
}

int kh_bytecode_pack(const void* program, int64_t which, void* const* buffers, const int64_t* sizes) {
  const Program& own = *static_cast<const Program*>(program);
  int failure = 0;
  const kh::bytecode::Call call{buffers, numbers_of(own, sizes).data(), &failure, 0};
  pack_one(own.packed[which], call, static_cast<float*>(buffers[own.buffers + which]));
  return failure;
}

int kh_bytecode_prepare(const void* program, void* const* buffers, const int64_t* sizes) {
  const Program& own = *static_cast<const Program*>(program);
  const std::vector<int64_t> numbers = numbers_of(own, sizes);
  for (const kh::bytecode::Kernel& kernel : own.prepare) {
    if (const int failure = run_kernel(kernel, buffers, numbers.data())) return failure;
  }
  for (size_t which = 0; which < own.packed.size(); ++which)
    if (buffers[own.buffers + which] != nullptr)
      kh_bytecode_pack(program, static_cast<int64_t>(which), buffers, sizes);
  return 0;
}

int kh_bytecode_run(const void* program, void* const* buffers, const int64_t* sizes) {
  const Program& own = *static_cast<const Program*>(program);
  const kh::bytecode::Entered entered(own);
  const int64_t* const numbers = numbers_of(own, sizes).data();
  int failure = 0;
  for (const kh::bytecode::Kernel& kernel : own.run) {
    const int code = run_kernel(kernel, buffers, numbers);
    failure = code != 0 ? code : failure;
  }
  return failure;
}

int kh_bytecode_step(const void* program, int64_t step, void* const* buffers, const int64_t* sizes) {
  const Program& own = *static_cast<const Program*>(program);
  const kh::bytecode::Entered entered(own);
  return run_kernel(own.run[step], buffers, numbers_of(own, sizes).data());
}

}  // extern "C"
