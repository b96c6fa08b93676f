// The shop is a folder here: orders.json has the orders, payments.txt and mails.txt what was done.
#include "refund.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

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
  AETHERIS_TRY(ctx.call("send_mail", Value::object({{"to", order["email"]}})));
  return paid;
}

}  // namespace

aetheris::Agent refund_agent() {
  return {.name = "refund", .body = refund, .uses = {"get_order", "pay_back", "send_mail"}};
}

std::vector<aetheris::Tool> shop_tools() {
  return {{.name = "get_order", .effect = Effect::read, .function = get_order},
          {.name = "pay_back", .effect = Effect::idempotent, .function = pay_back},
          {.name = "send_mail", .effect = Effect::at_most_once, .function = send_mail}};
}
