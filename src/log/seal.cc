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
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/byte_buffer.h"
#include "base/bytes.h"
#include "base/utf8.h"
#include "json/canonical_buffer.h"
#include "log/chain.h"
#include "log/events.h"
#include "log/field_codec.h"
#include "log/fields_by_number.h"
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
  std::array<std::uint8_t, kSaltSize> next() {
    if (used_ % 2 == 0) {
      write_big_endian64(used_ / 2, hashed_.data() + 16);
      pair_ = sha256({hashed_.data(), hashed_.size()});
    }
    std::array<std::uint8_t, kSaltSize> salt;
    std::memcpy(salt.data(), pair_.bytes.data() + (used_++ % 2) * kSaltSize, kSaltSize);
    return salt;
  }

 private:
  std::array<char, 24> hashed_;  // seed ‖ number of the pair
  std::uint64_t used_ = 0;
  Hash pair_;
};

class Sealer {
 public:
  Sealer(const SealInput& input, const SealLimits& limits, std::size_t count)
      : input_(input),
        limits_(limits),
        salts_(input.salt_seed_a, input.salt_seed_b),
        hasher_(input.job, input.created_at, input.attempt_id) {
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

    values_.clear();
    put_byte(static_cast<std::uint8_t>(event.type), bytes_);
    put_byte(event.schema, bytes_);
    put_byte(0, bytes_);  // room for the size
    const std::size_t begin = bytes_.size();
    AE_TRY(
        std::visit([&]<class E>(const E& typed) { return write_event(typed, event); }, event.body));
    set_size(begin);
    event.hash = sealed_.head = hasher_.finish();
    return {};
  }

  SealedBatch finish() {
    bytes_ += bytes_of(sealed_.head);
    sealed_.bytes = bytes_.view();
    return std::move(sealed_);
  }

 private:
  struct Range {
    std::size_t begin, end;
    std::size_t size() const { return end - begin; }
  };

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

  // Sets the size of the body from `begin` on, which one byte of room precedes.
  void set_size(std::size_t begin) {
    const std::size_t size = bytes_.size() - begin;
    std::array<char, 10> first;
    ByteBuffer varint(first);
    put_varint(size, varint);
    if (const std::size_t more = varint.size() - 1; more > 0) {
      bytes_.extend(more);
      std::memmove(bytes_.data() + begin + more, bytes_.data() + begin, size);
    }
    std::memcpy(bytes_.data() + begin - 1, varint.data(), varint.size());
  }

  Status write_event(const UnknownEvent&, Event&) {
    AE_CHECK(false, "an event type that is not in the table");
    return {};
  }

  template <class E>
  Status write_event(const E& typed, Event& event) {
    hasher_.begin(event, event_name(E::kType));
    AE_TRY(write_payload(typed, event));
    AE_CHECK(is_utf8(hasher_.payload()), event_name(E::kType));
    if constexpr (is_narrative(E::kType)) {
      put_named_body(typed);
    } else {
      put_numbered_body(typed);
    }
    return {};
  }

  // Appends payload' to the hashed text, in the order of names.
  template <class E>
  Status write_payload(const E& typed, Event& event) {
    ByteBuffer& out = hasher_.text();
    char before = '{';
    std::string_view too_large;
    visit_fields(typed, [&](auto field, const auto& member) {
      if (!is_present(field, member)) return;
      write_name(before, field.name(), out);
      before = ',';
      Range& text = texts_[field.number()];
      text = write_field(field, content_of(member), event, out);
      if (text.size() > limits_.value_max && too_large.empty()) too_large = field.name();
    });
    out += std::string_view(before == '{' ? "{}" : "}");
    if (too_large.empty()) return {};
    const auto* const kind = event_kind(E::kType);
    const auto number = std::ranges::find(kind->fields, too_large, &Field::name)->number;
    return fail(Code::payload_too_large,
                std::string(too_large) + " has " + std::to_string(texts_[number].size()) +
                    " bytes; at most " + std::to_string(limits_.value_max) + " are kept");
  }

  // Returns the field's canonical text: of a value field in `values_`, else in the hashed text.
  template <class Field, class T>
  Range write_field(Field field, const T& member, Event& event, ByteBuffer& out) {
    constexpr FieldKind kKind = Field::kind();
    if constexpr (kKind == FieldKind::value) {
      return write_value(field.name(), member.value, event, out);
    } else if constexpr (kKind == FieldKind::error) {
      AE_CHECK(member.message.value.is_string(), field.name());
      out += std::string_view(R"({"code":)");
      write_canonical_string(member.code, out);
      out += std::string_view(R"(,"message":)");
      const Range text =
          write_value(std::string(field.name()) + ".message", member.message.value, event, out);
      out += '}';
      return text;
    } else {
      const std::size_t begin = out.size();
      if constexpr (kKind == FieldKind::json) {
        const Value& json = stored_json(member);
        if (is_known(json)) {
          out += input_.known.text;
        } else {
          write_canonical(json, out);
        }
      } else {
        write_canonical_field<kKind>(member, out);
      }
      return {begin, out.size()};
    }
  }

  bool is_known(const Value& value) const {
    return input_.known.value != nullptr && value == *input_.known.value;
  }

  // Appends salt ‖ canonical text to `values_`, and the hash of both to the hashed text.
  Range write_value(std::string_view name, const Value& value, Event& event, ByteBuffer& out) {
    const Salt& salt = event.salts.emplace_back(name, salts_.next());
    values_.append(reinterpret_cast<const char*>(salt.bytes.data()), kSaltSize);
    const std::size_t begin = values_.size();
    write_canonical(value, values_);
    const Range text = {begin, values_.size()};
    AE_CHECK(is_utf8(value_text(text)), name);
    write_commitment(commitment(values_.view(begin - kSaltSize, text.end)), out);
    return text;
  }

  std::string_view value_text(const Range& text) const {
    return values_.view(text.begin, text.end);
  }
  std::string_view value_salt(const Range& text) const {
    return values_.view(text.begin - kSaltSize, text.begin);
  }

  template <class E>
  void put_numbered_body(const E& typed) {
    visit_fields_by_number(typed, [&](auto field, const auto& member) {
      if (is_present(field, member)) put_numbered(field, content_of(member), typed);
    });
  }

  template <class E, class Field, class T>
  void put_numbered(Field, const T& member, const E& typed) {
    constexpr FieldKind kKind = Field::kind();
    constexpr std::uint8_t kNumber = Field::number();
    if constexpr (std::is_same_v<E, ToolInvocationStarted> && kKind == FieldKind::value) {
      const bool by_message = &member == &typed.arguments && calls_model(typed);
      if (by_message && put_request(member.value, kNumber)) return;
    }
    if constexpr (kKind == FieldKind::value) {
      put_head(form_of(kKind, kNumber), kNumber);
      put_value(kNumber);
    } else if constexpr (kKind == FieldKind::error) {
      put_head(form_of(kKind, kNumber), kNumber);
      put_text(member.code, bytes_);
      put_value(kNumber);
    } else if constexpr (kKind == FieldKind::json) {
      const std::uint8_t form = form_of(kKind, kNumber);
      put_head(form, kNumber);
      put_json(form, is_known(stored_json(member)), kNumber);
    } else if constexpr (kKind == FieldKind::external_key) {
      const std::uint8_t form =
          external_key_form(schema_, member.text, input_.job, typed.step_id.text,
                            typed.idempotency_key.text, input_.attempt_id);
      put_head(form, kNumber);
      if (form == kKeyAsText) put_text(member.text, bytes_);
    } else {
      put_head(0, kNumber);
      put_field<kKind>(member, bytes_);
    }
  }

  void put_head(std::uint8_t form, std::uint8_t number) {
    put_byte(static_cast<std::uint8_t>(form << kFormShift | number), bytes_);
  }

  // The arguments of a model call, message by message; false if they cannot be stored that way.
  bool put_request(const Value& request, std::uint8_t number) {
    const Range& text = texts_[number];
    const auto split = split_request(request, value_text(text));
    if (!split || split->head.size() + split->tail.size() > limits_.value_inline_max) return false;
    put_head(kByMessage, number);
    bytes_ += value_salt(text);
    put_text(split->head, bytes_);
    put_varint(split->messages.size(), bytes_);
    for (const std::string_view message : split->messages) {
      const bool as_blob = message.size() > limits_.message_inline_max;
      put_byte(as_blob ? kAsBlob : kInline, bytes_);
      as_blob ? put_blob(message, sha256(message)) : put_text(message, bytes_);
    }
    put_text(split->tail, bytes_);
    return true;
  }

  template <class E>
  void put_named_body(const E& typed) {
    put_text(event_name(E::kType), bytes_);
    visit_fields(typed, [&](auto field, const auto& member) {
      constexpr FieldKind kKind = field.kind();
      static_assert(kKind != FieldKind::error && kKind != FieldKind::external_key,
                    "a narrative event has no such fields");
      if (!is_present(field, member)) return;
      put_text(field.name(), bytes_);
      const std::uint8_t form = form_of(kKind, field.number());
      if constexpr (kKind == FieldKind::value) {
        put_byte(form | kNamedValue, bytes_);
        put_value(field.number());
      } else {
        if constexpr (kKind != FieldKind::json) check_field<kKind>(content_of(member));
        put_byte(form, bytes_);
        put_json(form, false, field.number());
      }
    });
  }

  // A narrative event is stored by its canonical text; its fields are checked all the same.
  template <FieldKind Kind, class T>
  void check_field(const T& member) {
    const std::size_t size = bytes_.size();
    put_field<Kind>(member, bytes_);
    bytes_.truncate(size);
  }

  std::uint8_t form_of(FieldKind kind, std::uint8_t number) const {
    const bool is_value = kind == FieldKind::value || kind == FieldKind::error;
    const std::size_t inline_max = is_value                  ? limits_.value_inline_max
                                   : kind == FieldKind::json ? limits_.json_inline_max
                                                             : limits_.value_max;
    return texts_[number].size() > inline_max ? kAsBlob : kInline;
  }

  // The salt, and the canonical text inline or as a blob.
  void put_value(std::uint8_t number) {
    const Range& range = texts_[number];
    const std::string_view text = value_text(range);
    bytes_ += value_salt(range);
    range.size() <= limits_.value_inline_max ? put_text(text, bytes_)
                                             : put_blob(text, sha256(text));
  }

  // The canonical text, inline or as a blob. `known`: it is SealInput::known.
  void put_json(std::uint8_t form, bool known, std::uint8_t number) {
    const std::string_view text = hasher_.text().view(texts_[number].begin, texts_[number].end);
    if (form == kInline) return put_text(text, bytes_);
    put_blob(text, known ? input_.known.hash : sha256(text));
  }

  void put_blob(std::string_view text, const Hash& hash) {
    bytes_ += bytes_of(hash);
    put_varint(text.size(), bytes_);
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
  std::array<char, 4096> first_bytes_;
  ByteBuffer bytes_{first_bytes_};
  // Of the current event.
  std::array<char, 1024> first_values_;
  ByteBuffer values_{first_values_};              // salt ‖ canonical text of each value field
  std::array<Range, kFieldNumberMax + 1> texts_;  // the canonical text of each field, by number
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
