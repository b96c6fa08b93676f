// The kinds of the fields of events.def, records.def and decisions.def: how a field is stored, and
// its C++ type.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/boxed.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"
#include "log/event_type.h"
#include "log/json_of.h"

namespace ae {

// A value field (SPEC §13). Erased: the value is no longer in the log; `value` is then
// {"$redacted": commitment, "left"?: the retained part of an erased decision}.
struct Erasable {
  Value value;
  bool erased = false;

  Erasable() = default;
  Erasable(Value v) : value(std::move(v)) {}
  bool is_null() const { return value.is_null(); }
  // The value, or its retained part.
  const Value& value_or_retained() const {
    const Value* retained = erased ? value.find("left") : nullptr;
    return retained != nullptr ? *retained : value;
  }
  bool operator==(const Erasable&) const = default;
};

// {code, message}; the message is a value field: a string, unless it is erased.
struct RecordedError {
  std::string code;
  Erasable message;
  bool operator==(const RecordedError&) const = default;
};

// A word of log/words.h, or another text in its place.
using Word = InlineText<24>;
// 16 hex digits: the id of a step or a call, or the digest of a definition.
using ShortDigest = InlineText<16>;

namespace field_kind {

template <FieldKind Kind, class T>
struct Stored {
  static constexpr FieldKind kKind = Kind;
  using Type = T;
};
using text = Stored<FieldKind::text, std::string>;
using word = Stored<FieldKind::word, Word>;
using id8 = Stored<FieldKind::id8, ShortDigest>;
using step = Stored<FieldKind::id8, StepId>;
using invocation = Stored<FieldKind::id8, InvocationId>;
using decision = Stored<FieldKind::id8, DecisionId>;
using hash = Stored<FieldKind::hash32, Hash>;
using idempotency = Stored<FieldKind::hash32, IdempotencyKey>;
using external_key = Stored<FieldKind::external_key, ExternalKey>;
using integer = Stored<FieldKind::integer, std::int64_t>;
using boolean = Stored<FieldKind::boolean, bool>;
using instant = Stored<FieldKind::instant, Instant>;
using json = Stored<FieldKind::json, Value>;
using value = Stored<FieldKind::value, Erasable>;
using error = Stored<FieldKind::error, RecordedError>;
template <class T>
using record = Stored<FieldKind::json, T>;
template <class T>
using list = Stored<FieldKind::json, std::vector<T>>;
using texts = list<std::string>;

template <class Kind>
using Required = typename Kind::Type;
template <class T>
constexpr bool kNullIsAbsent = std::is_same_v<T, Value> || std::is_same_v<T, Erasable>;
template <class Kind>
using Optional = std::conditional_t<kNullIsAbsent<typename Kind::Type>, typename Kind::Type,
                                    std::optional<typename Kind::Type>>;
// An event holds records as JSON.
template <class Kind>
struct InEvent {
  using Type = typename Kind::Type;
};
template <class T>
  requires(!std::is_same_v<T, Value>)
struct InEvent<Stored<FieldKind::json, T>> {
  using Type = JsonOf<T>;
};
template <class Kind>
using RequiredInEvent = typename InEvent<Kind>::Type;
template <class T>
constexpr bool kNullIsAbsent<JsonOf<T>> = true;
// Of an event: texts and errors are almost always absent, and an event has no room for them.
template <class T>
constexpr bool kBoxed = std::is_same_v<T, std::string> || std::is_same_v<T, RecordedError>;
template <class Kind>
using OptionalInEvent = std::conditional_t<kBoxed<typename Kind::Type>, Boxed<typename Kind::Type>,
                                           Optional<InEvent<Kind>>>;

}  // namespace field_kind

}  // namespace ae
