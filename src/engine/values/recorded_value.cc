#include "engine/values/recorded_value.h"

#include <fmt/core.h>

#include <array>
#include <limits>

#include "base/bytes.h"
#include "base/hash.h"
#include "log/field_names.h"

namespace ae::engine {
namespace {

constexpr RecordedKind kAll[] = {RecordedKind::time, RecordedKind::random, RecordedKind::uuid};
constexpr std::int64_t kMicrosPerMilli = 1'000;

// A stream of 64-bit numbers for one step of one decision.
class RandomStream {
 public:
  RandomStream(const DecisionContext& context, const StepId& step) : seed_("aetheris.chance.v1") {
    for (const std::uint64_t word : context.entropy) put_big_endian64(word, seed_);
    seed_ += step.text;
  }
  std::uint64_t next() {
    if (left_ == 0) {
      std::string block = seed_;
      put_big_endian64(blocks_++, block);
      block_ = sha256(block);
      left_ = 4;
    }
    const std::size_t from = (4 - left_--) * 8;
    std::uint64_t number = 0;
    for (std::size_t i = from; i < from + 8; ++i) number = number << 8 | block_.bytes[i];
    return number;
  }
  // Uniform: numbers from the last, incomplete span are drawn again.
  std::uint64_t uniform_below(std::uint64_t span) {
    const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
    const std::uint64_t limit = most - (most % span + 1) % span;
    std::uint64_t number = next();
    while (number > limit) number = next();
    return number % span;
  }

 private:
  std::string seed_;
  std::uint64_t blocks_ = 0;
  Hash block_;
  std::size_t left_ = 0;
};

std::int64_t milliseconds(Instant at) {
  const std::int64_t whole = at.us / kMicrosPerMilli;
  return at.us % kMicrosPerMilli < 0 ? whole - 1 : whole;
}

Value time_value(Instant at) {
  return Value::object({{"ms", milliseconds(at)}, {"time", to_text(at)}});
}

Value random_value(const Value& args, RandomStream& stream) {
  if (args.size() == 0) return static_cast<double>(stream.next() >> 11) * 0x1p-53;
  const std::int64_t min = args["min"].as_int(), max = args["max"].as_int();
  const std::uint64_t span = static_cast<std::uint64_t>(max - min) + 1;
  return min + static_cast<std::int64_t>(stream.uniform_below(span));
}

Value uuid_value(const Value& args, Instant now, RandomStream& stream) {
  const std::uint64_t a = stream.next(), b = stream.next();
  Uuid uuid = uuid_v7(static_cast<std::uint64_t>(milliseconds(now)), a, b);
  if (args[field::version] == Value(4)) {
    std::string bytes;
    put_big_endian64(a, bytes);
    put_big_endian64(b, bytes);
    for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
      uuid.bytes[i] = static_cast<std::uint8_t>(bytes[i]);
    }
    uuid.bytes[6] = static_cast<std::uint8_t>((uuid.bytes[6] & 0x0fU) | 0x40U);
    uuid.bytes[8] = static_cast<std::uint8_t>((uuid.bytes[8] & 0x3fU) | 0x80U);
  }
  return to_text(uuid);
}

bool is_uuid(const Value& value, int version) {
  const auto uuid = value.is_string() ? uuid_from_text(value.as_string()) : std::nullopt;
  return uuid && uuid->bytes[6] >> 4 == version && uuid->bytes[8] >> 6 == 2;
}

std::unexpected<Error> invalid_arguments(std::string_view tool, std::string_view why) {
  return fail(Code::input_invalid, "the arguments of `{}` {}", tool, why);
}

Status check_bounds(const Value& args) {
  if (args.size() == 0) return {};
  const Value &min = args["min"], &max = args["max"];
  if (args.size() != 2 || !min.is_integer() || !max.is_integer()) {
    return invalid_arguments("random",
                             "are {}, or {min, max}: two integers from -(2^53-1) to 2^53-1");
  }
  if (min.as_int() <= max.as_int()) return {};
  return invalid_arguments(
      "random", fmt::format("have a min of {} above their max of {}", min.as_int(), max.as_int()));
}

}  // namespace

std::string_view to_text(RecordedKind records) {
  constexpr std::string_view kText[] = {"", "time", "random", "uuid"};
  return kText[static_cast<std::size_t>(records)];
}

std::optional<RecordedKind> recorded_kind_of(std::string_view text) {
  for (const RecordedKind records : kAll) {
    if (to_text(records) == text) return records;
  }
  return std::nullopt;
}

EventType recorded_event_type(RecordedKind records) {
  switch (records) {
    case RecordedKind::time:
      return EventType::time_recorded;
    case RecordedKind::random:
      return EventType::random_recorded;
    case RecordedKind::uuid:
      return EventType::uuid_recorded;
    case RecordedKind::nothing:
      break;
  }
  AE_CHECK(false, "a tool that makes a call records no value");
}

EventBody make_recorded_event(RecordedKind records, std::string effect_id, Value value) {
  switch (records) {
    case RecordedKind::time:
      return TimeRecorded{std::move(effect_id), std::move(value)};
    case RecordedKind::random:
      return RandomRecorded{std::move(effect_id), std::move(value)};
    case RecordedKind::uuid:
      return UuidRecorded{std::move(effect_id), std::move(value)};
    case RecordedKind::nothing:
      break;
  }
  AE_CHECK(false, "a tool that makes a call records no value");
}

RecordedKind recorded_kind_of(EventType type) {
  for (const RecordedKind records : kAll) {
    if (recorded_event_type(records) == type) return records;
  }
  return RecordedKind::nothing;
}

Value args_schema_of(RecordedKind records) {
  std::vector<Member> schema{{"additionalProperties", false}, {"type", "object"}};
  if (records == RecordedKind::random) {
    const Value integer = Value::object({{"type", "integer"}});
    schema.emplace_back("dependentRequired", Value::object({{"max", Value::array({"min"})},
                                                            {"min", Value::array({"max"})}}));
    schema.emplace_back("properties", Value::object({{"max", integer}, {"min", integer}}));
  } else if (records == RecordedKind::uuid) {
    const Value version = Value::object({{"enum", Value::array({4, 7})}});
    schema.emplace_back("properties", Value::object({{field::version, version}}));
  }
  return Value::object(std::move(schema));
}

Status check_recorded_args(RecordedKind records, const Value& args) {
  if (!args.is_object()) return invalid_arguments(to_text(records), "are not a JSON object");
  switch (records) {
    case RecordedKind::nothing:
      return {};
    case RecordedKind::time:
      return args.size() == 0 ? Status() : invalid_arguments("now", "are {}: it takes none");
    case RecordedKind::random:
      return check_bounds(args);
    case RecordedKind::uuid: {
      const Value& version = args[field::version];
      const bool known = version == Value(4) || version == Value(7);
      if (args.size() == 0 || (args.size() == 1 && known)) return {};
      return invalid_arguments("uuid", "are {}, or {version}: 4 or 7");
    }
  }
  return {};
}

bool is_possible_value(RecordedKind records, const Value& args, const Value& value) {
  switch (records) {
    case RecordedKind::nothing:
      return false;
    case RecordedKind::time: {
      const auto at = instant_from_text(value.text("time"));
      return at && value == time_value(*at);
    }
    case RecordedKind::random:
      if (args.size() == 0) {
        return value.is_number() && value.as_number() >= 0 && value.as_number() < 1;
      }
      return value.is_integer() && value.as_int() >= args["min"].as_int() &&
             value.as_int() <= args["max"].as_int();
    case RecordedKind::uuid:
      return is_uuid(value, args[field::version] == Value(4) ? 4 : 7);
  }
  return false;
}

Value draw_value(RecordedKind records, const Value& args, const DecisionContext& context,
                 const StepId& step) {
  RandomStream stream(context, step);
  switch (records) {
    case RecordedKind::time:
      return time_value(context.now);
    case RecordedKind::random:
      return random_value(args, stream);
    case RecordedKind::uuid:
      return uuid_value(args, context.now, stream);
    case RecordedKind::nothing:
      break;
  }
  AE_CHECK(false, step.text);
}

std::string effect_id(const StepId& step, RecordedKind records) {
  return fmt::format("{}:{}", step.text, to_text(records));
}

std::optional<StepId> step_of_effect(std::string_view effect_id, RecordedKind records) {
  const std::size_t colon = effect_id.find(':');
  if (colon == effect_id.npos || effect_id.substr(colon + 1) != to_text(records)) {
    return std::nullopt;
  }
  return StepId(std::string(effect_id.substr(0, colon)));
}

}  // namespace ae::engine
