//   refund run ORDER       runs the job refund-ORDER, or continues it, and prints its result
//   refund serve ADDRESS   runs jobs that clients create over HTTP (docs/api.md)
//
// Kill it at any time and start it again: the payment and the mail happen once.
#include <cstdlib>
#include <iostream>
#include <string>

#include "refund.h"

using aetheris::Value;

namespace {

int report(const aetheris::Error& error) {
  std::cerr << error.code << ": " << error.message << '\n';
  return EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc == 3 ? argv[1] : "";
  if (command != "run" && command != "serve") {
    std::cerr << "usage: refund run ORDER, or refund serve ADDRESS:PORT\n";
    return 2;
  }
  auto runtime = aetheris::Aetheris::open(
      {.store = "sqlite:refund.db", .agents = {refund_agent()}, .tools = shop_tools()});
  if (!runtime) return report(runtime.error());
  if (command == "serve") {
    const auto served = (*runtime)->serve(argv[2]);
    return served ? EXIT_SUCCESS : report(served.error());
  }
  const std::string order = argv[2];
  const auto result = (*runtime)->run("refund", Value::object({{"order", order}}),
                                      {.id = "refund-" + order, .idempotency_key = order});
  if (!result) return report(result.error());
  std::cout << result->to_json() << '\n';
}
