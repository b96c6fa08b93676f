// seal: encodes events as bytes and blobs. docs/data.md describes the layout.
//
//   batch   = 01 ‖ first event id (16) ‖ created_at (8, big-endian µs) ‖ attempt ‖ varint count ‖
//             varint first seq ‖ event… ‖ hash of the last event (32)
//   attempt = 00 | 01 ‖ UUID (16) | 02 ‖ text                    text = varint length ‖ bytes
//   event   = type ‖ schema ‖ varint length ‖ body
//
// The body of an event is its fields by rising number, each starting with a byte form‹‹5 | number:
//   text                          text
//   word                          number in the word list, or 00 ‖ text
//   id8, hash32, uuid             8, 32, 16 bytes
//   integer                       varint of its zig-zag form
//   boolean                       00 | 01
//   instant                       8 bytes big-endian µs
//   external_key                  text (form 1) | nothing (form 0: the key of this job, step and
//                                 attempt; form 2: of this job and step; form 3: of this job, step
//                                 and idempotency key)
//   json                          canonical text (form 0) | blob (form 1)
//   value                         salt (16) ‖ canonical text (form 0) | salt ‖ blob (form 1)
//                                 | commitment (32, form 2)
//                                 | salt ‖ head as text ‖ varint count ‖ message… ‖ tail as text
//                                 (form 3: arguments of a model call; the canonical text is
//                                 head ‖ messages with commas ‖ tail)
//                                 | commitment ‖ canonical text (form 4: an erased decision, and
//                                 its retained part)
//   error                         code as text ‖ message as a value
//   message = 00 ‖ text | 01 ‖ blob
//   blob = SHA-256 (32) ‖ varint size
//
// Programs preserve narrative events that they do not know, so these contain names: the body is the
// type's name as text, then each member by its key as text ‖ form (+4 for a value field) ‖ the json
// or value as above.
#include "log/seal.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/byte_buffer.h"
#include "base/bytes.h"
#include "base/utf8.h"
#include "json/canonical_buffer.h"
#include "log/chain.h"
#include "log/events.h"
#include "log/field_codec.h"
#include "log/sealed_form.h"
#include "log/split_request.h"
#include "log/words.h"

namespace ae {
namespace {

// The salts of one commit: halves of SHA256(seed ‖ 0), SHA256(seed ‖ 1), …
class Salts {
 public:
  Salts(std::uint64_t seed_a, std::uint64_t seed_b) {
    write_big_endian64(seed_a, hashed_.data());
    write_big_endian64(seed_b, hashed_.data() + 8);
  }
  // Valid until the next call.
  std::string_view next() {
    if (used_ % 2 == 0) {
      write_big_endian64(used_ / 2, hashed_.data() + 16);
      pair_ = sha256({hashed_.data(), hashed_.size()});
    }
    const char* const bytes = reinterpret_cast<const char*>(pair_.bytes.data());
    return {bytes + (used_++ % 2) * kSaltSize, kSaltSize};
  }

 private:
  std::array<char, 24> hashed_;  // seed ‖ number of the pair
  std::uint64_t used_ = 0;
  Hash pair_;
};

// One field of the current event, kept until its number is written.
struct Slot {
  FieldKind kind{};
  std::uint8_t form = 0;              // of an external key
  bool known = false;                 // its text is SealInput::known
  const Value* value = nullptr;       // json, value, the message of an error
  const std::string* code = nullptr;  // of an error
  std::size_t begin = 0,
              end = 0;  // its canonical text, in `values_` (value, error) or in the hashed text
  std::size_t stored_begin = 0,
              stored_end = 0;  // its bytes in `stored_`; none for json, value and error

  bool holds_value() const { return kind == FieldKind::value || kind == FieldKind::error; }
};

class Sealer {
 public:
  Sealer(const SealInput& input, const SealLimits& limits, std::size_t count)
      : input_(input),
        limits_(limits),
        salts_(input.salt_seed_a, input.salt_seed_b),
        hasher_(input.job, input.created_at, input.attempt_id),
        bytes_(256 * count),
        values_(1024),
        stored_(512),
        body_(1024) {
    sealed_.first_seq = input.first_seq;
    sealed_.last_seq = input.first_seq + count - 1;
    sealed_.created_at = input.created_at;
    sealed_.head = input.prev_hash;
    put_header(count);
  }

  // Sets the members of the event except its body.
  Status add(Event& event) {
    event.seq = input_.first_seq + added_;
    event.id = uuid_plus(input_.first_id, added_++);
    event.type = type_of(event.body);
    event.schema = schema_ = schema_of(event.body);
    event.created_at = input_.created_at;
    event.attempt_id = input_.attempt_id;
    event.prev_hash = sealed_.head;

    hasher_.begin(event);
    values_.clear();
    stored_.clear();
    body_.clear();
    salts_json_.clear();
    AE_TRY(std::visit([this]<class E>(const E& typed) { return write_event(typed); }, event.body));
    if (!salts_json_.empty()) event.salts = Value::object(std::exchange(salts_json_, {}));
    event.hash = sealed_.head = hasher_.finish();

    put_byte(static_cast<std::uint8_t>(event.type), bytes_);
    put_byte(event.schema, bytes_);
    put_text(body_.view(), bytes_);
    return {};
  }

  SealedBatch finish() {
    bytes_ += bytes_of(sealed_.head);
    sealed_.bytes = bytes_.view();
    return std::move(sealed_);
  }

 private:
  void put_header(std::size_t count) {
    ByteBuffer& out = bytes_;
    put_byte(kSealedVersion, out);
    out.append(reinterpret_cast<const char*>(input_.first_id.bytes.data()),
               input_.first_id.bytes.size());
    put_big_endian64(static_cast<std::uint64_t>(input_.created_at.us), out);
    if (!input_.attempt_id) {
      put_byte(kNoAttempt, out);
    } else if (const auto uuid = uuid_from_text(input_.attempt_id->text)) {
      put_byte(kUuidAttempt, out);
      out.append(reinterpret_cast<const char*>(uuid->bytes.data()), uuid->bytes.size());
    } else {
      put_byte(kTextAttempt, out);
      put_text(input_.attempt_id->text, out);
    }
    put_varint(count, out);
    put_varint(input_.first_seq, out);
  }

  Status write_event(const UnknownEvent&) {
    AE_CHECK(false, "an event type that is not in the table");
    return {};
  }

  template <class E>
  Status write_event(const E& event) {
    AE_TRY(write_payload(event));
    AE_CHECK(is_utf8(hasher_.payload()) && is_utf8_apart_from_salts(), event_name(E::kType));
    if constexpr (is_narrative(E::kType)) {
      put_named_body(event);
    } else {
      put_numbered_body(event);
    }
    return {};
  }

  // Appends payload' to the hashed text, in the order of names, and fills a slot for each field.
  template <class E>
  Status write_payload(const E& event) {
    present_ = 0;
    ByteBuffer& out = hasher_.text();
    char before = '{';
    Status status;
    visit_fields(event, [&](auto field, const auto& member) {
      if (!is_present(field, member) || !status) return;
      write_name(std::exchange(before, ','), field.name(), out);
      present_ |= 1U << field.number();
      Slot& slot = slots_[field.number()] = {.kind = field.kind()};
      write_field(event, field, content_of(member), slot, out);
      const std::size_t size = slot.end - slot.begin;
      if (size > limits_.value_max) status = too_large(field.name(), size);
    });
    out += std::string_view(before == '{' ? "{}" : "}");
    return status;
  }

  // The name of a member, after a brace or a comma.
  static void write_name(char before, std::string_view name, ByteBuffer& out) {
    char* at = out.extend(name.size() + 4);
    *at++ = before;
    *at++ = '"';
    std::memcpy(at, name.data(), name.size());
    at += name.size();
    *at++ = '"';
    *at = ':';
  }

  std::unexpected<Error> too_large(std::string_view field, std::size_t size) const {
    return fail(Code::payload_too_large, std::string(field) + " has " + std::to_string(size) +
                                             " bytes; at most " +
                                             std::to_string(limits_.value_max) + " are kept");
  }

  template <class E, class Field, class T>
  void write_field(const E& event, Field field, const T& member, Slot& slot, ByteBuffer& out) {
    constexpr FieldKind kKind = Field::kind();
    if constexpr (kKind == FieldKind::value) {
      write_value(slot, field.name(), member.value, out);
    } else if constexpr (kKind == FieldKind::error) {
      AE_CHECK(member.message.value.is_string(), field.name());
      slot.code = &member.code;
      out += std::string_view(R"({"code":)");
      write_canonical_string(member.code, out);
      out += std::string_view(R"(,"message":)");
      write_value(slot, std::string(field.name()) + ".message", member.message.value, out);
      out += '}';
    } else {
      slot.begin = out.size();
      if constexpr (kKind == FieldKind::json) slot.known = is_known(member);
      if (slot.known) {
        out += input_.known.text;
      } else {
        write_canonical_field<kKind>(member, out);
      }
      slot.end = out.size();
      slot.stored_begin = stored_.size();
      if constexpr (kKind == FieldKind::external_key) {
        slot.form = external_key_form(schema_, member.text, input_.job, event.step_id.text,
                                      event.idempotency_key.text, input_.attempt_id);
        if (slot.form == kKeyAsText) put_text(member.text, stored_);
      } else if constexpr (kKind != FieldKind::json) {
        // A narrative event is stored by its canonical text; its fields are checked all the same.
        const std::size_t size = stored_.size();
        put_field<kKind>(member, stored_);
        if constexpr (is_narrative(E::kType)) stored_.truncate(size);
      }
      slot.stored_end = stored_.size();
    }
  }

  bool is_known(const Value& value) const {
    return input_.known.value != nullptr && value == *input_.known.value;
  }

  // Appends salt ‖ canonical text to `values_`, and the hash of both to the hashed text.
  void write_value(Slot& slot, std::string_view name, const Value& value, ByteBuffer& out) {
    const std::string_view salt = salts_.next();
    salts_json_.emplace_back(name, to_hex(salt));
    slot.value = &value;
    values_ += salt;
    slot.begin = values_.size();
    write_canonical(value, values_);
    slot.end = values_.size();
    write_commitment(commitment(values_.view(slot.begin - kSaltSize, slot.end)), out);
  }

  std::string_view value_text(const Slot& slot) const { return values_.view(slot.begin, slot.end); }
  std::string_view value_salt(const Slot& slot) const {
    return values_.view(slot.begin - kSaltSize, slot.begin);
  }

  // visit(slot, number) for each field of the event, by rising number.
  template <class Visit>
  void for_each_slot(Visit&& visit) const {
    for (std::uint32_t left = present_; left != 0; left &= left - 1) {
      const auto number = static_cast<std::uint8_t>(std::countr_zero(left));
      visit(slots_[number], number);
    }
  }

  bool is_utf8_apart_from_salts() const {
    bool good = true;
    for_each_slot([&](const Slot& slot, std::uint8_t) {
      good = good && (!slot.holds_value() || is_utf8(value_text(slot)));
    });
    return good;
  }

  template <class E>
  void put_numbered_body(const E& event) {
    for_each_slot([&](const Slot& slot, std::uint8_t number) {
      if constexpr (std::is_same_v<E, ToolInvocationStarted>) {
        if (slot.value == &event.arguments.value && calls_model(event) && put_request(slot, number))
          return;
      }
      put_slot(slot, number);
    });
  }

  void put_head(std::uint8_t form, std::uint8_t number) {
    put_byte(static_cast<std::uint8_t>(form << kFormShift | number), body_);
  }

  // The arguments of a model call, message by message; false if they cannot be stored that way.
  bool put_request(const Slot& slot, std::uint8_t number) {
    const auto split = split_request(*slot.value, value_text(slot));
    if (!split || split->head.size() + split->tail.size() > limits_.value_inline_max) return false;
    put_head(kByMessage, number);
    body_ += value_salt(slot);
    put_text(split->head, body_);
    put_varint(split->messages.size(), body_);
    for (const std::string_view message : split->messages) {
      const bool as_blob = message.size() > limits_.message_inline_max;
      put_byte(as_blob ? kAsBlob : kInline, body_);
      as_blob ? put_blob(message, sha256(message)) : put_text(message, body_);
    }
    put_text(split->tail, body_);
    return true;
  }

  void put_slot(const Slot& slot, std::uint8_t number) {
    const bool content = slot.holds_value() || slot.kind == FieldKind::json;
    put_head(content ? form_of(slot) : slot.form, number);
    if (slot.code != nullptr) put_text(*slot.code, body_);
    if (content) return put_content(slot);
    body_ += stored_.view(slot.stored_begin, slot.stored_end);
  }

  template <class E>
  void put_named_body(const E& event) {
    put_text(event_name(E::kType), body_);
    visit_fields(event, [&](auto field, const auto&) {
      static_assert(field.kind() != FieldKind::error, "a narrative event has no error fields");
      if ((present_ >> field.number() & 1U) == 0) return;
      const Slot& slot = slots_[field.number()];
      put_text(field.name(), body_);
      const std::uint8_t form = form_of(slot);
      put_byte(slot.holds_value() ? form | kNamedValue : form, body_);
      put_content(slot);
    });
  }

  std::uint8_t form_of(const Slot& slot) const {
    const std::size_t inline_max = slot.holds_value()             ? limits_.value_inline_max
                                   : slot.kind == FieldKind::json ? limits_.json_inline_max
                                                                  : limits_.value_max;
    return slot.end - slot.begin > inline_max ? kAsBlob : kInline;
  }

  // The canonical text, inline or as a blob; preceded by the salt of a value.
  void put_content(const Slot& slot) {
    const std::string_view text =
        slot.holds_value() ? value_text(slot) : hasher_.text().view(slot.begin, slot.end);
    if (slot.holds_value()) body_ += value_salt(slot);
    if (form_of(slot) == kInline) return put_text(text, body_);
    put_blob(text, slot.known ? input_.known.hash : sha256(text));
  }

  void put_blob(std::string_view text, const Hash& hash) {
    body_ += bytes_of(hash);
    put_varint(text.size(), body_);
    if (std::ranges::find(sealed_.blobs, hash, &Blob::hash) == sealed_.blobs.end()) {
      sealed_.blobs.push_back({hash, std::string(text)});
    }
  }

  const SealInput& input_;
  const SealLimits& limits_;
  Salts salts_;
  EventHasher hasher_;
  SealedBatch sealed_;  // without its bytes and events
  std::uint64_t added_ = 0;
  std::uint8_t schema_ = 0;  // of the current event
  ByteBuffer bytes_;
  // Of the current event; kept to reuse their memory.
  std::array<Slot, kFieldNumberMax + 1> slots_;
  std::uint32_t present_ = 0;  // bit n: field n is present, and its slot is set
  ByteBuffer values_;          // salt ‖ canonical text of each value field
  ByteBuffer stored_;          // the bytes of the other fields
  ByteBuffer body_;
  std::vector<Member> salts_json_;
};

}  // namespace

Result<SealedBatch> seal(const SealInput& input, std::vector<Event> events,
                         const SealLimits& limits) {
  AE_CHECK(!events.empty());
  AE_CHECK(input.first_seq >= 1 && input.first_seq <= kSeqMax - events.size());
  AE_CHECK(input.prev_hash.is_zero() == (input.first_seq == 1));
  AE_CHECK(!input.attempt_id || is_utf8(input.attempt_id->text));
  Sealer sealer(input, limits, events.size());
  for (Event& event : events) AE_TRY(sealer.add(event));
  SealedBatch sealed = sealer.finish();
  sealed.events = std::move(events);
  return sealed;
}

Result<SealedBatch> seal(const SealInput& input, std::vector<EventBody> bodies,
                         const SealLimits& limits) {
  std::vector<Event> events(bodies.size());
  for (std::size_t i = 0; i < bodies.size(); ++i) events[i].body = std::move(bodies[i]);
  return seal(input, std::move(events), limits);
}

}  // namespace ae
