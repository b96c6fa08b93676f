// The agent of the row `code-cpp`: STORE ADDRESS serves jobs whose steps are functions of this
// process.
#include <aetheris/aetheris.h>

#include <cstdio>
#include <string>

namespace {

using aetheris::Value;

aetheris::Result<Value> steps(aetheris::Context& ctx, const Value& input) {
  static const std::string kText(180, 'x');
  std::int64_t last = 0;
  for (std::int64_t n = 0; n < input["steps"].as_int(); ++n) {
    AETHERIS_ASSIGN(const Value made,
                    ctx.run("step", aetheris::Effect::idempotent, Value::object({{"n", n}}),
                            [](const Value& args, aetheris::Call&) {
                              return Value::object({{"n", args["n"]}, {"text", kText}});
                            }));
    last = made["n"].as_int();
  }
  return Value::object({{"last", last}});
}

int report(const aetheris::Error& error) {
  std::fprintf(stderr, "%s: %s\n", error.code.c_str(), error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: agent STORE ADDRESS\n");
    return 2;
  }
  auto runtime = aetheris::Aetheris::open(
      {.store = argv[1], .agents = {{.name = "steps", .body = steps, .version = "1"}}});
  if (!runtime) return report(runtime.error());
  if (auto served = (*runtime)->serve(argv[2]); !served) return report(served.error());
  return 0;
}
