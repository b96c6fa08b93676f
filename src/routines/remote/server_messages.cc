#include "routines/remote/server_messages.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "log/field_names.h"

namespace ae::routines {
namespace {

Value request_value(const engine::RecordedRequest& request) {
  std::vector<Member> members{{field::delivered, request.delivered},
                              {field::kind, to_text(request.kind)},
                              {field::position, request.position}};
  if (!request.tool.empty()) members.emplace_back("tool", request.tool);
  if (request.arguments_hash) {
    members.emplace_back(field::arguments_hash, to_hex(*request.arguments_hash));
  }
  if (request.kind == engine::NodeKind::wait) members.emplace_back("wait", to_text(request.wait));
  return Value::object(std::move(members));
}

// One part of a record while it is made.
struct Part {
  std::vector<Value> requests, deliveries;
  std::size_t bytes = 0;

  Value take(Value values, Value emitted) {
    bytes = 0;
    std::vector<Member> members{{"deliveries", Value::array(std::exchange(deliveries, {}))},
                                {"requests", Value::array(std::exchange(requests, {}))},
                                {"values", std::move(values)},
                                {"emitted", std::move(emitted)}};
    return Value::object(std::move(members));
  }
};

}  // namespace

Value outcome_value(const engine::Delivery& outcome) {
  if (outcome.passed_over > 0) return Value::object({{"passed_over", outcome.passed_over}});
  std::vector<Member> members{{field::kind, to_text(outcome.kind)},
                              {field::position, outcome.position}};
  const auto add_flag = [&](const char* name, bool is_set) {
    if (is_set) members.emplace_back(name, true);
  };
  add_flag("timed_out", outcome.timed_out);
  add_flag("rejected", outcome.rejected);
  add_flag("erased", outcome.erased);
  if (outcome.failure) {
    members.emplace_back("failure", Value::object({{field::code, outcome.failure->code},
                                                   {"message", outcome.failure->message}}));
  } else {
    members.emplace_back(field::result, outcome.result);
  }
  return Value::object(std::move(members));
}

std::vector<std::vector<Value>> outcome_parts(const std::vector<engine::Delivery>& outcomes) {
  std::vector<std::vector<Value>> parts;
  std::size_t bytes = kPartMax;
  for (const engine::Delivery& outcome : outcomes) {
    Value value = outcome_value(outcome);
    const std::size_t size = value.extent().bytes;
    if (bytes + size > kPartMax) {
      parts.emplace_back();
      bytes = 0;
    }
    bytes += size;
    parts.back().push_back(std::move(value));
  }
  return parts;
}

std::vector<Value> record_parts(const engine::CodeRecord& record) {
  std::vector<Member> values, emitted;
  for (const auto& [name, value] : record.values) values.emplace_back(name, value);
  for (const auto& [scope, count] : record.emitted) emitted.emplace_back(scope, count);
  Value first_values = Value::object(std::move(values));
  Value first_emitted = Value::object(std::move(emitted));
  std::vector<std::size_t> order(record.requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return record.requests[i].delivered; });

  std::vector<Value> parts;
  Part part;
  part.bytes = first_values.extent().bytes;
  const auto end_part = [&] {
    parts.push_back(part.take(std::exchange(first_values, Value::object({})),
                              std::exchange(first_emitted, Value::object({}))));
  };
  const auto add = [&](std::vector<Value> Part::* list, Value value) {
    const std::size_t size = value.extent().bytes;
    const bool is_empty = part.requests.empty() && part.deliveries.empty();
    if (!is_empty && part.bytes + size > kPartMax) end_part();
    part.bytes += size;
    (part.*list).push_back(std::move(value));
  };
  std::size_t next = 0;
  const auto add_requests = [&](std::uint64_t up_to) {
    for (; next < order.size() && record.requests[order[next]].delivered <= up_to; ++next) {
      add(&Part::requests, request_value(record.requests[order[next]]));
    }
  };
  std::uint64_t delivered = 0;
  for (const engine::Delivery& delivery : record.deliveries) {
    add_requests(delivered);
    add(&Part::deliveries, outcome_value(delivery));
    delivered += std::max<std::uint64_t>(delivery.passed_over, 1);
  }
  add_requests(delivered);
  end_part();
  return parts;
}

}  // namespace ae::routines
