// A refund: reads the order, asks for approval above 100, pays back, and sends a mail.
//
//   refund run ORDER       runs the job refund-ORDER, or continues it, and prints its result
//   refund serve ADDRESS   runs jobs that clients create over HTTP (docs/api.md)
//
// Kill it at any time and start it again: the payment and the mail happen once. The shop is a
// folder here: orders.json has the orders, payments.txt and mails.txt what was done.
#include <aetheris/aetheris.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

namespace {

using aetheris::Call;
using aetheris::Context;
using aetheris::Effect;
using aetheris::Failure;
using aetheris::Result;
using aetheris::Value;

using FunctionResult = std::expected<Value, Failure>;

std::unexpected<Failure> definite(std::string code, std::string message) {
  return std::unexpected(Failure{.code = std::move(code), .message = std::move(message)});
}

FunctionResult get_order(const Value& args, Call&) {
  std::ifstream file("orders.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto orders = Value::from_json(text);
  if (!orders) return definite("no_orders", "orders.json: " + orders.error().message);
  const Value order = (*orders)[args.text("order")];
  if (order.is_null()) return definite("no_order", "there is no order " + args.text("order"));
  return order;
}

// Each key is paid once, however often it is called: the downstream recognises repetitions.
FunctionResult pay_back(const Value& args, Call& call) {
  std::ifstream paid("payments.txt");
  for (std::string line; std::getline(paid, line);) {
    if (line.starts_with(call.key())) return Value::object({{"payment", std::string(call.key())}});
  }
  std::ofstream("payments.txt", std::ios::app)
      << call.key() << ' ' << args.text("order") << ' ' << args["amount"].to_json() << '\n';
  return Value::object({{"payment", std::string(call.key())}});
}

// A mail cannot be recognised as a repetition: it is sent at most once.
FunctionResult send_mail(const Value& args, Call&) {
  std::ofstream("mails.txt", std::ios::app) << args.text("to") << '\n';
  return Value();
}

Result<Value> refund(Context& ctx, const Value& input) {
  AETHERIS_ASSIGN(const Value order,
                  ctx.call("get_order", Value::object({{"order", input["order"]}})));
  const Value amount = order["total"];
  if (amount.as_int() > 100) {
    AETHERIS_TRY(ctx.approval("Pay " + amount.to_json() + " back?",
                              {.key = "approval", .expires = std::chrono::hours(72)}));
  }
  AETHERIS_ASSIGN(const Value paid,
                  ctx.call("pay_back", Value::object({{"order", input["order"]},
                                                      {"amount", amount}})));
  AETHERIS_TRY(ctx.run("mail", Effect::at_most_once, Value::object({{"to", order["email"]}}),
                       send_mail));
  return paid;
}

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
      {.store = "sqlite:refund.db",
       .agents = {{.name = "refund", .body = refund, .uses = {"get_order", "pay_back"}}},
       .tools = {{.name = "get_order", .effect = Effect::read, .function = get_order},
                 {.name = "pay_back", .effect = Effect::idempotent, .function = pay_back}}});
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
