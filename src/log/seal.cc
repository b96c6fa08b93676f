// The writer's half of the stored form: drafts become events, bytes and blobs. docs/data.md draws the layout.
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
//   external_key                  text (form 1) | nothing (form 0: the key of this job, step and attempt; form 2: of this
//                                 job and step; form 3: of this job, step and idempotency key)
//   json                          canonical text (form 0) | blob (form 1)
//   value                         salt (16) ‖ canonical text (form 0) | salt ‖ blob (form 1) | commitment (32, form 2)
//                                 | salt ‖ head as text ‖ varint count ‖ message… ‖ tail as text (form 3: arguments of a
//                                 call of a model; the canonical text is head ‖ messages with commas ‖ tail)
//                                 | commitment ‖ canonical text (form 4: an erased decision, and what is left of it)
//   error                         code as text ‖ message as a value
//   message = 00 ‖ text | 01 ‖ blob
//   blob = SHA-256 (32) ‖ varint size
//
// Narrative events are carried by programs that do not know them, so they spell their names: the body is the type's
// name as text, then each member by its key as text ‖ form (+4 for a value field) ‖ the json or value as above.
#include "log/seal.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/bytes.h"
#include "base/utf8.h"
#include "json/json.h"
#include "log/chain.h"
#include "log/request_cut.h"
#include "log/sealed_form.h"
#include "log/words.h"

namespace ae {
namespace {

// The salts of one commit: halves of SHA256(seed ‖ 0), SHA256(seed ‖ 1), …
class Salts {
 public:
  Salts(std::uint64_t seed_a, std::uint64_t seed_b) {
    put_big_endian64(seed_a, seed_);
    put_big_endian64(seed_b, seed_);
  }
  // Borrowed until the next call.
  std::string_view next() {
    if (used_ % 2 == 0) {
      std::string text = seed_;
      put_big_endian64(used_ / 2, text);
      pair_ = sha256(text);
    }
    const char* const bytes = reinterpret_cast<const char*>(pair_.bytes.data());
    return {bytes + (used_++ % 2) * kSaltSize, kSaltSize};
  }

 private:
  std::string seed_;
  std::uint64_t used_ = 0;
  Hash pair_;
};

// What stands in the batch for one field of the event at hand, kept until its turn by number comes.
struct Slot {
  const Field* field = nullptr;  // nullptr: absent
  const Value* value = nullptr;
  std::size_t begin = 0,
              end = 0;  // its canonical text in the hashed text (json) or in `values_` (value)
};

std::string_view bytes_of(const Hash& hash) {
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}

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
    sealed_.events.reserve(count);
    put_header(count);
  }

  Status add(const EventDraft& draft) {
    const EventKind* const kind = event_kind(draft.type);
    AE_CHECK(kind != nullptr, "an event type that is not in the table");
    const Status status = check_payload(*kind, draft.payload);
    AE_CHECK(status.has_value(), status.error().message);

    Event& event = sealed_.events.emplace_back();
    event.seq = input_.first_seq + sealed_.events.size() - 1;
    event.id = uuid_plus(input_.first_id, sealed_.events.size() - 1);
    event.type = draft.type;
    event.schema = schema_of(*kind, draft.payload);
    event.created_at = input_.created_at;
    event.attempt_id = input_.attempt_id;
    event.payload = without_absent(*kind, draft.payload);
    event.prev_hash = sealed_.head;

    hasher_.begin(event);
    values_.clear();
    body_.clear();
    shown_salts_.clear();
    AE_TRY(write_payload(*kind, event.payload));
    AE_CHECK(is_utf8(hasher_.payload()) && is_utf8_apart_from_salts(), kind->name);
    if (kind->event_class == EventClass::narrative) {
      put_named_body(*kind);
    } else {
      put_numbered_body(*kind, event.payload);
    }
    if (!shown_salts_.empty()) event.salts = Value::object(std::exchange(shown_salts_, {}));
    event.hash = sealed_.head = hasher_.finish();

    put_byte(static_cast<std::uint8_t>(event.type), sealed_.bytes);
    put_byte(event.schema, sealed_.bytes);
    put_text(body_, sealed_.bytes);
    return {};
  }

  Sealed finish() {
    sealed_.bytes += bytes_of(sealed_.head);
    return std::move(sealed_);
  }

 private:
  void put_header(std::size_t count) {
    std::string& out = sealed_.bytes;
    out.reserve(256 * count);
    body_.reserve(1024);
    values_.reserve(1024);
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

  static Value without_absent(const EventKind& kind, const Value& payload) {
    const auto absent = [&kind](const Member& member) {
      if (!member.second.is_null()) return false;
      const auto field = std::ranges::find(kind.fields, member.first, &Field::name);
      return !takes_null(*field);
    };
    const auto members = payload.members();
    if (std::ranges::none_of(members, absent)) return payload;
    std::vector<Member> kept;
    std::ranges::remove_copy_if(members, std::back_inserter(kept), absent);
    return Value::object(std::move(kept));
  }

  // Appends payload' to what is hashed, in the order of names, and remembers a slot for each field.
  Status write_payload(const EventKind& kind, const Value& payload) {
    slots_ = {};
    std::string& out = hasher_.text();
    char before = '{';
    auto field = kind.fields.begin();
    for (const auto& [name, value] : payload.members()) {
      while (field->name != name) ++field;
      out += std::exchange(before, ',');
      out += '"';
      out += name;
      out += "\":";
      Slot& slot = slots_[field->number];
      slot.field = &*field;
      slot.value = &value;
      AE_TRY(write_field(slot, out));
    }
    out += before == '{' ? "{}" : "}";
    return {};
  }

  Status write_field(Slot& slot, std::string& out) {
    const Field& field = *slot.field;
    if (field.kind == FieldKind::value) {
      write_value(slot, field.name, *slot.value, out);
    } else if (field.kind == FieldKind::error) {
      AE_CHECK((*slot.value)["message"].is_string(), field.name);
      out += R"({"code":)";
      write_canonical_string((*slot.value)["code"].as_string(), out);
      out += R"(,"message":)";
      write_value(slot, std::string(field.name) + ".message", (*slot.value)["message"], out);
      out += '}';
    } else {
      slot.begin = out.size();
      write_canonical(*slot.value, out);
      slot.end = out.size();
    }
    const std::size_t size = slot.end - slot.begin;
    if (size <= limits_.value_max) return {};
    return fail(Code::payload_too_large, std::string(field.name) + " has " + std::to_string(size) +
                                             " bytes; at most " +
                                             std::to_string(limits_.value_max) + " are kept");
  }

  // Keeps salt ‖ canonical text in `values_` and shows the chain their hash.
  void write_value(Slot& slot, std::string_view name, const Value& value, std::string& out) {
    const std::string_view salt = salts_.next();
    shown_salts_.emplace_back(name, to_hex(salt));
    values_ += salt;
    slot.begin = values_.size();
    write_canonical(value, values_);
    slot.end = values_.size();
    write_commitment(commitment(std::string_view(values_).substr(slot.begin - kSaltSize)), out);
  }

  bool is_utf8_apart_from_salts() const {
    return std::ranges::all_of(slots_, [this](const Slot& slot) {
      return slot.field == nullptr || !holds_value(*slot.field) ||
             is_utf8(std::string_view(values_).substr(slot.begin, slot.end - slot.begin));
    });
  }

  void put_numbered_body(const EventKind& kind, const Value& payload) {
    for (const Slot& slot : slots_) {
      if (slot.field == nullptr) continue;
      const bool request = may_be_by_message(kind.type, *slot.field) && calls_model(payload);
      if (!request || !put_request(slot)) put_field(slot, payload);
    }
  }

  // What a model is asked, message by message; false when that is not how it can be stored.
  bool put_request(const Slot& slot) {
    const std::string_view text =
        std::string_view(values_).substr(slot.begin, slot.end - slot.begin);
    const auto cut = cut_request(*slot.value, text);
    if (!cut || cut->head.size() + cut->tail.size() > limits_.value_inline_max) return false;
    put_byte(static_cast<std::uint8_t>(kByMessage << kFormShift | slot.field->number), body_);
    body_ += std::string_view(values_).substr(slot.begin - kSaltSize, kSaltSize);
    put_text(cut->head, body_);
    put_varint(cut->messages.size(), body_);
    for (const std::string_view message : cut->messages) {
      const bool apart = message.size() > limits_.message_inline_max;
      put_byte(apart ? kApart : kInline, body_);
      apart ? put_blob(message) : put_text(message, body_);
    }
    put_text(cut->tail, body_);
    return true;
  }

  void put_field(const Slot& slot, const Value& payload) {
    const Field& field = *slot.field;
    const auto head = [&](std::uint8_t form) {
      put_byte(static_cast<std::uint8_t>(form << kFormShift | field.number), body_);
    };
    switch (field.kind) {
      case FieldKind::text:
        head(0);
        return put_text(slot.value->as_string(), body_);
      case FieldKind::word: {
        head(0);
        const std::uint8_t number = word_number(slot.value->as_string());
        put_byte(number, body_);
        if (number == 0) put_text(slot.value->as_string(), body_);
        return;
      }
      case FieldKind::id8:
        head(0);
        body_ += *from_hex(slot.value->as_string());
        return;
      case FieldKind::hash32:
        head(0);
        body_ += bytes_of(*hash_from_hex(slot.value->as_string()));
        return;
      case FieldKind::uuid: {
        head(0);
        const Uuid uuid = *uuid_from_text(slot.value->as_string());
        body_.append(reinterpret_cast<const char*>(uuid.bytes.data()), uuid.bytes.size());
        return;
      }
      case FieldKind::integer:
        head(0);
        return put_varint(zig_zag(slot.value->as_int()), body_);
      case FieldKind::boolean:
        head(0);
        return put_byte(slot.value->as_bool() ? 1 : 0, body_);
      case FieldKind::instant:
        head(0);
        return put_big_endian64(
            static_cast<std::uint64_t>(instant_from_text(slot.value->as_string())->us), body_);
      case FieldKind::external_key: {
        const std::string& key = slot.value->as_string();
        const std::uint8_t form = external_key_form(
            sealed_.events.back().schema, key, input_.job, payload.text("step_id"),
            payload.text("idempotency_key"), input_.attempt_id);
        head(form);
        if (form == kSpelled) put_text(key, body_);
        return;
      }
      case FieldKind::json:
      case FieldKind::value:
        head(form_of(slot));
        return put_content(slot);
      case FieldKind::error:
        head(form_of(slot));
        put_text((*slot.value)["code"].as_string(), body_);
        return put_content(slot);
    }
  }

  void put_named_body(const EventKind& kind) {
    put_text(kind.name, body_);
    for (const Field& field : kind.fields) {  // in the order of names
      const Slot& slot = slots_[field.number];
      if (slot.field == nullptr) continue;
      AE_CHECK(field.kind != FieldKind::error, "a narrative event has no error fields");
      put_text(field.name, body_);
      const std::uint8_t form = form_of(slot);
      put_byte(holds_value(field) ? form | kNamedValue : form, body_);
      put_content(slot);
    }
  }

  std::uint8_t form_of(const Slot& slot) const {
    const bool value = holds_value(*slot.field);
    const std::size_t inline_max = value                                 ? limits_.value_inline_max
                                   : slot.field->kind == FieldKind::json ? limits_.json_inline_max
                                                                         : limits_.value_max;
    return slot.end - slot.begin > inline_max ? kApart : kInline;
  }

  // The canonical text of a json or value field, here or as a blob; before it the salt of a value.
  void put_content(const Slot& slot) {
    const bool value = holds_value(*slot.field);
    const std::string_view store = value ? std::string_view(values_) : hasher_.text();
    const std::string_view text = store.substr(slot.begin, slot.end - slot.begin);
    if (value) body_ += store.substr(slot.begin - kSaltSize, kSaltSize);
    form_of(slot) == kInline ? put_text(text, body_) : put_blob(text);
  }

  void put_blob(std::string_view text) {
    const Hash hash = sha256(text);
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
  Sealed sealed_;
  // Of the event at hand; kept to reuse their memory.
  std::array<Slot, kFieldNumberMax + 1> slots_{};
  std::string values_;  // salt ‖ canonical text of each value field
  std::string body_;
  std::vector<Member> shown_salts_;
};

}  // namespace

Result<Sealed> seal(const SealInput& input, const std::vector<EventDraft>& drafts,
                    const SealLimits& limits) {
  AE_CHECK(!drafts.empty());
  AE_CHECK(input.first_seq >= 1 && input.first_seq <= kSeqMax - drafts.size());
  AE_CHECK(input.prev_hash.is_zero() == (input.first_seq == 1));
  AE_CHECK(!input.attempt_id || is_utf8(input.attempt_id->text));
  Sealer sealer(input, limits, drafts.size());
  for (const EventDraft& draft : drafts) AE_TRY(sealer.add(draft));
  return sealer.finish();
}

}  // namespace ae
