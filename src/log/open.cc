// open: decodes the stored form (described in seal.cc): any bytes become events or an error.
//
// Only the exact encoding that `seal` writes is accepted, and the chain is
// recomputed from what was read.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <forward_list>
#include <utility>

#include "base/bytes.h"
#include "base/utf8.h"
#include "json/json.h"
#include "log/chain.h"
#include "log/events.h"
#include "log/field_codec.h"
#include "log/field_names.h"
#include "log/fields_by_number.h"
#include "log/redacted.h"
#include "log/seal.h"
#include "log/sealed_form.h"
#include "log/split_request.h"
#include "log/words.h"

namespace ae {
namespace {

std::unexpected<Error> corrupt(std::string_view what) {
  return fail(Code::log_corrupt, std::string(what));
}

Uuid uuid_of(std::string_view bytes) {
  Uuid uuid;
  if (bytes.size() == uuid.bytes.size()) std::ranges::copy(bytes, uuid.bytes.begin());
  return uuid;
}

Instant instant_of(std::uint64_t bits) { return {static_cast<std::int64_t>(bits)}; }

// The data that the events of a batch share.
struct Header {
  Uuid first_id;
  Instant created_at;
  std::optional<AttemptId> attempt_id;
  std::uint64_t count = 0;
  std::uint64_t first_seq = 0;
};

Result<std::optional<AttemptId>> read_attempt(ByteReader& in) {
  switch (in.byte()) {
    case kNoAttempt:
      return std::nullopt;
    case kUuidAttempt:
      return AttemptId(to_text(uuid_of(in.bytes(16))));
    case kTextAttempt: {
      const std::string_view text = in.text();
      if (uuid_from_text(text)) return corrupt("the attempt's UUID is written as text");
      if (!is_utf8(text)) return corrupt("the attempt's name is not UTF-8");
      return AttemptId(std::string(text));
    }
    default:
      return corrupt("an unknown form of attempt");
  }
}

Result<Header> read_header(ByteReader& in) {
  const std::uint8_t version = in.byte();
  if (in.ok() && version > kSealedVersion) {
    return fail(Code::needs_version,
                "a batch of format version {}; use a newer Aetheris to read it", version);
  }
  if (version != kSealedVersion) return corrupt("no batch of sealed events");
  Header header;
  header.first_id = uuid_of(in.bytes(16));
  header.created_at = instant_of(in.big_endian64());
  AE_ASSIGN(header.attempt_id, read_attempt(in));
  header.count = in.varint();
  header.first_seq = in.varint();
  if (!in.ok()) return corrupt("the batch ends too early");
  if (!in_range(header.created_at)) return corrupt("the batch's time is out of range");
  if (header.count == 0 || header.count > in.left()) return corrupt("an impossible event count");
  if (header.first_seq == 0 || header.first_seq > kSeqMax - header.count) {
    return corrupt("an impossible sequence number");
  }
  return header;
}

// The bytes of a value field in the body of its event, and their replacement when it is redacted.
struct ValueSpan {
  std::string field;
  std::size_t begin = 0, end = 0;
  std::string redacted_bytes;
};

// What is known of a stored field besides its value. Borrows from the body and from
// the blobs that were read.
struct PayloadMember {
  bool null = false;
  bool by_message = false;
  std::uint8_t form = 0;  // of an external key
  std::string_view text;  // canonical, of json
  std::string_view salt;  // of a value or an error's message; empty if redacted
  Hash commitment;        // of that value
};

// A member of a narrative event, which is stored with its name.
struct NamedMember : PayloadMember {
  std::string_view name;
  Value json;
  bool is_value = false;
};

// Reads the bodies of events, one after the other, reusing its memory.
class BodyReader {
 public:
  BodyReader(const JobId& job, const BlobSource& blobs, const ValueLookup& lookup,
             bool collects_spans)
      : job_(job), blobs_(blobs), lookup_(lookup), collects_spans_(collects_spans) {}

  // Sets body and salts of the event, and appends payload' to the hashed text. REQUIRES: a kind,
  // unless it is narrative.
  Status read(const EventKind* kind, std::string_view body, Event& event, EventHasher& hasher) {
    size_ = body.size();
    in_ = ByteReader(body);
    value_spans_.clear();
    read_blobs_.clear();
    if (is_narrative(event.type)) {
      AE_TRY(read_named(kind, event, hasher));
    } else {
      switch (event.type) {
#define AE_EVENT(Struct, name, number, event_class, schema, ...)                 \
  case EventType::name:                                                          \
    if constexpr (!is_narrative(EventType::name)) {                              \
      AE_TRY(read_numbered(*kind, event.body.emplace<Struct>(), event, hasher)); \
    }                                                                            \
    break;
#include "log/define_events.h"
      }
    }
    // In the order of the names, as `seal` has them.
    if (event.salts.size() > 1) std::ranges::sort(event.salts, key_less, &Salt::field);
    if (!is_utf8(hasher.payload())) return corrupt("a text is not UTF-8");
    return {};
  }

  // The values that are not erased, in the order of the bytes. REQUIRES: collects_spans.
  const std::vector<ValueSpan>& value_spans() const { return value_spans_; }

 private:
  std::size_t at() const { return size_ - in_.left(); }

  // ---- fields by number, from the table

  // By ascending number: form and number, then the content.
  template <class E>
  Status read_numbered(const EventKind& kind, E& typed, Event& event, EventHasher& hasher) {
    hasher.begin(event, kind.name);
    present_ = 0;
    NextField next = read_head();
    int previous = 0;
    Status status;
    visit_fields_by_number(typed, [&](auto field, auto& member) {
      if (next.number != field.number() || !status) return;
      present_ |= 1U << field.number();
      PayloadMember& part = parts_[field.number()] = {};
      status = read_one<E>(field, next, content_slot(member), part, event);
      previous = next.number;
      next = read_head();
    });
    AE_TRY(std::move(status));
    if (next.number != kNoField && next.number <= previous) return corrupt("fields out of order");
    if (next.number != kNoField)
      return corrupt(fmt::format("an unknown field, number {}", next.number));
    if (!in_.ok()) return corrupt("its bytes end too early");
    if constexpr (std::is_same_v<E, ToolInvocationStarted>)
      AE_TRY(derive_external_key(typed, event));
    AE_TRY(check_numbered(kind, typed));
    write_payload(typed, hasher.text());
    return {};
  }

  // The first byte of a field, and where it is.
  struct NextField {
    int number = kNoField;
    std::uint8_t form = 0;
    std::size_t begin = 0;
  };
  static constexpr int kNoField = -1;
  NextField read_head() {
    if (in_.left() == 0) return {};
    const std::size_t begin = at();
    const std::uint8_t head = in_.byte();
    return {head & kFieldNumberMax, static_cast<std::uint8_t>(head >> kFormShift), begin};
  }

  bool is_stored(auto field) const { return (present_ >> field.number() & 1U) != 0; }

  static auto& content_slot(OptionalMember auto& member) { return member.emplace(); }
  static auto& content_slot(auto& member) { return member; }

  template <class E, class Field, class T>
  Status read_one(Field field, const NextField& head, T& member, PayloadMember& part,
                  Event& event) {
    constexpr FieldKind kKind = Field::kind();
    const std::uint8_t form = head.form;
    part.by_message = form == kByMessage && may_be_by_message(E::kType, field.name());
    const bool is_retained = form == kRetained && may_retain_value(E::kType, field.name());
    if (form > form_max(kKind) && !part.by_message && !is_retained) {
      return field_error(field.name(), " has an unknown form");
    }
    if constexpr (kKind == FieldKind::external_key) {
      part.form = form;
      if (form == kKeyAsText)
        member.text = in_.text();  // the other forms are derived: derive_external_key
    } else if constexpr (kKind == FieldKind::json) {
      AE_ASSIGN(const Content content, read_content(form));
      part.text = content.text;
      AE_ASSIGN(stored_json(member), read_json(content));
      part.null = member.is_null();
    } else if constexpr (kKind == FieldKind::value) {
      AE_TRY(read_value(form, field.name(), part, member.value));
      member.erased = part.salt.empty();
      part.null = member.is_null();
    } else if constexpr (kKind == FieldKind::error) {
      member.code = in_.text();
      AE_TRY(read_value(form, field.name(), part, member.message.value));
      member.message.erased = part.salt.empty();
    } else {
      const std::string_view why = read_field<kKind>(in_, member);
      if (!why.empty()) return field_error(field.name(), why);
    }
    if (part.salt.empty()) return {};
    if constexpr (kKind == FieldKind::error) {
      add_salt(std::string(field.name()) + ".message", part, event);
    } else {
      add_salt(field.name(), part, event);
    }
    if (!collects_spans_) return {};
    std::string redacted_bytes;
    put_byte(static_cast<std::uint8_t>(kRedacted << kFormShift | field.number()), redacted_bytes);
    if constexpr (kKind == FieldKind::error) put_text(member.code, redacted_bytes);
    add_value_span(event.salts.back().field, part, head.begin, std::move(redacted_bytes));
    return {};
  }

  static constexpr int form_max(FieldKind kind) {
    if (kind == FieldKind::value || kind == FieldKind::error) return kRedacted;
    if (kind == FieldKind::external_key) return kKeyFromIdempotencyKey;
    return kind == FieldKind::json ? 1 : 0;
  }

  // Derives an external key that was not stored, once its step is known.
  Status derive_external_key(ToolInvocationStarted& typed, const Event& event) {
    const PayloadMember* part = nullptr;
    visit_fields(typed, [&](auto field, const auto&) {
      if constexpr (field.kind() == FieldKind::external_key) {
        if (is_stored(field)) part = &parts_[field.number()];
      }
    });
    if (part == nullptr) return {};
    const std::string_view step = typed.step_id.text, idempotency_key = typed.idempotency_key.text;
    if (step.empty()) return corrupt("step_id is missing");
    if (idempotency_key.empty()) return corrupt("idempotency_key is missing");
    if (part->form != kKeyAsText) {
      typed.external_key = derived_external_key(part->form, job_, typed.step_id,
                                                typed.idempotency_key, event.attempt_id);
    }
    const std::uint8_t form = external_key_form(event.schema, typed.external_key.text, job_, step,
                                                idempotency_key, event.attempt_id);
    if (form == part->form) return {};
    return field_error(field::external_key, part->form == kKeyAsText
                                                ? " spells out a key that follows from the event"
                                                : " has another form than the writer's");
  }

  // Types are valid by decoding. Checks that required fields are present and that absent members
  // are not stored as null.
  template <class E>
  Status check_numbered(const EventKind& kind, const E& typed) const {
    Status status;
    visit_fields(typed, [&](auto field, const auto& member) {
      if (!status) return;
      const PayloadMember& part = parts_[field.number()];
      const bool stored = is_stored(field);
      const bool null = stored && part.null && !field.accepts_null();
      if (field.required() && (!stored || null)) {
        status = corrupt(fmt::format("{}.{} is missing", kind.name, field.name()));
      } else if (null) {
        status = field_error(field.name(), " is null");
      } else if constexpr (field.kind() == FieldKind::error) {
        const bool text = !stored || content_of(member).message.value.is_string() ||
                          is_redacted(content_of(member).message.value);
        if (!text) {
          status = corrupt(
              fmt::format("{}.{} is not {{code, message}}, both texts", kind.name, field.name()));
        }
      }
      if constexpr (std::is_same_v<E, ToolInvocationStarted>) {
        if (status && stored && part.by_message && !calls_model(typed)) {
          status = field_error(field.name(),
                               " is stored by message, but the call is not one of a model");
        }
      }
    });
    return status;
  }

  template <class E>
  void write_payload(const E& typed, ByteBuffer& out) const {
    char before = '{';
    visit_fields(typed, [&](auto field, const auto& member) {
      if (!is_stored(field)) return;
      const PayloadMember& part = parts_[field.number()];
      write_name(before, field.name(), out);
      before = ',';
      constexpr FieldKind kKind = field.kind();
      if constexpr (kKind == FieldKind::error) {
        out += std::string_view(R"({"code":)");
        write_canonical_string(content_of(member).code, out);
        out += std::string_view(R"(,"message":)");
        write_commitment(part.commitment, out);
        out += '}';
      } else if constexpr (kKind == FieldKind::value) {
        write_commitment(part.commitment, out);
      } else if constexpr (kKind == FieldKind::json) {
        out += part.text;
      } else {
        write_canonical_field<kKind>(content_of(member), out);
      }
    });
    out += std::string_view(before == '{' ? "{}" : "}");
  }

  // ---- fields by name: narrative events, which programs preserve even if they do not know them

  // The type's name; then by ascending key: key, form, content.
  Status read_named(const EventKind* kind, Event& event, EventHasher& hasher) {
    const std::string_view type_name = in_.text();
    const bool own_name = kind != nullptr ? kind->name == type_name
                                          : !type_name.empty() && event_kind(type_name) == nullptr;
    if (!in_.ok() || !own_name || !is_utf8(type_name)) return corrupt("its type has another name");
    UnknownEvent unknown{event.type, std::string(type_name), {}};
    hasher.begin(event, type_name);
    std::vector<Member> payload;
    std::vector<NamedMember> parts;
    while (in_.left() > 0) {
      const std::size_t begin = at();
      const std::string_view key = in_.text();
      const std::uint8_t form = in_.byte();
      if (!parts.empty() && !key_less(parts.back().name, key)) return corrupt("keys out of order");
      if (form > (kNamedValue | kRedacted) || form == kRedacted || form == 3) {
        return corrupt("a member has an unknown form");
      }
      NamedMember& part = parts.emplace_back();
      part.name = key;
      part.is_value = (form & kNamedValue) != 0;
      if (part.is_value) {
        AE_TRY(read_value(form & 3, key, part, part.json));
      } else {
        AE_ASSIGN(const Content content, read_content(form & 3));
        part.text = content.text;
        AE_ASSIGN(part.json, read_json(content));
      }
      payload.emplace_back(key, part.json);
      if (part.salt.empty()) continue;
      add_salt(key, part, event);
      if (!collects_spans_) continue;
      std::string redacted_bytes;
      put_text(key, redacted_bytes);
      put_byte(kNamedValue | kRedacted, redacted_bytes);
      add_value_span(std::string(key), part, begin, std::move(redacted_bytes));
    }
    if (!in_.ok()) return corrupt("its bytes end too early");
    unknown.payload = Value::object(std::move(payload));
    const bool known = kind != nullptr && event.schema <= kind->schema;
    if (known) AE_TRY(check_named(*kind, parts, unknown.payload));
    write_named_payload(parts, hasher.text());
    if (known) {
      AE_ASSIGN(event.body, event_from_json(*kind, unknown.payload));
      std::visit([&](auto& typed) { mark_erased(parts, typed); }, event.body);
    } else {
      event.body = std::move(unknown);
    }
    return {};
  }

  static void mark_erased(const std::vector<NamedMember>&, UnknownEvent&) {}
  template <class E>
  static void mark_erased(const std::vector<NamedMember>& parts, E& typed) {
    visit_fields(typed, [&](auto field, auto& member) {
      if constexpr (field.kind() == FieldKind::value) {
        const auto part = std::ranges::find(parts, field.name(), &NamedMember::name);
        member.erased = part != parts.end() && part->salt.empty();
      }
    });
  }

  // Checks the payload against the table, and that absent members are not stored as null.
  Status check_named(const EventKind& kind, const std::vector<NamedMember>& parts,
                     const Value& payload) const {
    AE_TRY(check_payload(kind, payload));
    for (const NamedMember& part : parts) {
      const auto field = std::ranges::find(kind.fields, part.name, &Field::name);
      if (part.json.is_null() && !accepts_null(*field)) return field_error(part.name, " is null");
      if (part.is_value != holds_value(*field)) {
        return field_error(part.name, " is stored as another kind of field");
      }
    }
    return {};
  }

  static void write_named_payload(const std::vector<NamedMember>& parts, ByteBuffer& out) {
    char before = '{';
    for (const NamedMember& part : parts) {
      out += std::exchange(before, ',');
      write_canonical_string(part.name, out);
      out += ':';
      if (part.is_value) {
        write_commitment(part.commitment, out);
      } else {
        out += part.text;
      }
    }
    out += std::string_view(before == '{' ? "{}" : "}");
  }

  // ---- contents

  static void add_salt(std::string_view name, const PayloadMember& part, Event& event) {
    std::ranges::copy(part.salt, event.salts.emplace_back(name).bytes.begin());
  }

  Status read_value(std::uint8_t form, std::string_view name, PayloadMember& part, Value& json) {
    if (form == kRedacted) {
      part.commitment = hash_of(in_.bytes(kHashSize));
      json = Value::object({{"$redacted", to_hex(part.commitment)}});
      return {};
    }
    if (form == kRetained) {
      part.commitment = hash_of(in_.bytes(kHashSize));
      AE_ASSIGN(const Content content, read_content(kInline));
      AE_ASSIGN(Value retained, read_json(content));
      if (!retained.is_object())
        return field_error(name, " is erased, and what is left of it is not an object");
      json = Value::object({{"$redacted", to_hex(part.commitment)}, {"left", std::move(retained)}});
      return {};
    }
    part.salt = in_.bytes(kSaltSize);
    if (form == kByMessage) return read_request(name, part, json);
    AE_ASSIGN(const Content content, read_content(form));
    AE_ASSIGN(json, read_json(content));
    scratch_.assign(part.salt).append(content.text);
    part.commitment = commitment(scratch_);
    return {};
  }

  // The arguments of a model call, message by message.
  Status read_request(std::string_view name, PayloadMember& part, Value& json) {
    const std::string_view head = in_.text();
    const std::uint64_t count = in_.varint();
    if (count == 0 || count > in_.left()) return field_error(name, " has no messages");
    std::string salted(part.salt);
    salted += head;
    std::vector<std::size_t> sizes;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint8_t form = in_.byte();
      if (form > kAsBlob) return corrupt("a message has an unknown form");
      AE_ASSIGN(const Content message, read_content(form));
      if (i > 0) salted += ',';
      salted += message.text;
      sizes.push_back(message.text.size());
    }
    salted += in_.text();
    if (!in_.ok()) return corrupt("its bytes end too early");
    const std::string_view text = std::string_view(salted).substr(part.salt.size());
    AE_ASSIGN(json, read_json({text}));
    const auto split = split_request(json, text);
    const auto same = [](std::string_view message, std::size_t size) {
      return message.size() == size;
    };
    if (!split || split->head.size() != head.size() ||
        !std::ranges::equal(split->messages, sizes, same)) {
      return field_error(name, " is not cut at its messages");
    }
    part.commitment = commitment(salted);
    return {};
  }

  struct Content {
    std::string_view text;          // canonical
    const Value* cached = nullptr;  // the parsed value, if the caller has it cached
  };

  // The canonical text, inline or from a blob.
  Result<Content> read_content(std::uint8_t form) {
    if (form == kInline) return Content{in_.text()};
    const Hash hash = hash_of(in_.bytes(kHashSize));
    const std::uint64_t size = in_.varint();
    if (!in_.ok()) return corrupt("its bytes end too early");
    AE_ASSIGN(std::string blob, blobs_(hash));
    if (blob.size() != size || sha256(blob) != hash) {
      return corrupt(
          fmt::format("the value kept apart as {} is not what was stored", to_hex(hash)));
    }
    return Content{read_blobs_.emplace_front(std::move(blob)), lookup_ ? lookup_(hash) : nullptr};
  }

  Result<Value> read_json(const Content& content) {
    if (content.cached != nullptr) return *content.cached;
    constexpr JsonLimits kStoredJson{
        .bytes_max = ~std::size_t{0}, .depth_max = kJsonDepthMax, .big_integers = true};
    auto value = parse_canonical(content.text, kStoredJson);
    if (!value) return corrupt(fmt::format("a value is {}", value.error().message));
    return value;
  }

  static std::unexpected<Error> field_error(std::string_view field, std::string_view what) {
    return corrupt(std::string(field).append(what));
  }

  void add_value_span(std::string name, const PayloadMember& part, std::size_t begin,
                      std::string redacted_bytes) {
    redacted_bytes += bytes_of(part.commitment);
    value_spans_.push_back({std::move(name), begin, at(), std::move(redacted_bytes)});
  }

  const JobId& job_;
  const BlobSource& blobs_;
  const ValueLookup& lookup_;
  const bool collects_spans_;
  std::size_t size_ = 0;
  ByteReader in_{{}};
  std::uint32_t present_ = 0;  // bit n: field n is stored, and its part is set
  std::array<PayloadMember, kFieldNumberMax + 1> parts_;  // by number
  std::vector<ValueSpan> value_spans_;
  std::forward_list<std::string> read_blobs_;  // the blobs that were read
  std::string scratch_;
};

// Called with each event as it is read.
using Rewrite = std::function<void(const Event&, const BodyReader&, std::string_view body)>;

Status read_event(ByteReader& in, BodyReader& reader, EventHasher& hasher, Event& event,
                  const Rewrite* rewrite) {
  const std::uint8_t number = in.byte();
  event.type = static_cast<EventType>(number);
  event.schema = in.byte();
  const std::string_view body = in.text();
  if (!in.ok()) return corrupt("the batch ends too early");
  if (event.schema == 0) return corrupt("it has no schema version");
  const EventKind* const kind = event_kind(event.type);
  if (number < kNarrativeFrom && (kind == nullptr || event.schema > kind->schema)) {
    return fail(Code::needs_version,
                "type {}, schema {}, is newer than this Aetheris; use the one that wrote it",
                number, event.schema);
  }
  AE_TRY(reader.read(kind, body, event, hasher));
  event.hash = hasher.finish();
  if (rewrite != nullptr) (*rewrite)(event, reader, body);
  return {};
}

Result<OpenedBatch> read_batch(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                               const BlobSource& blobs, const ValueLookup& lookup,
                               const Rewrite* rewrite) {
  ByteReader in(bytes);
  AE_ASSIGN(const Header header, read_header(in));
  OpenedBatch opened;
  opened.first_seq = header.first_seq;
  opened.last_seq = header.first_seq + header.count - 1;
  opened.head = prev_hash;
  opened.events.reserve(
      std::min<std::size_t>(header.count, in.left() / 3));  // at least three bytes each
  BodyReader reader(job, blobs, lookup, rewrite != nullptr);
  EventHasher hasher(job, header.created_at, header.attempt_id);
  for (std::uint64_t i = 0; i < header.count; ++i) {
    Event& event = opened.events.emplace_back();
    event.seq = header.first_seq + i;
    event.id = uuid_plus(header.first_id, i);
    event.created_at = header.created_at;
    event.attempt_id = header.attempt_id;
    event.prev_hash = opened.head;
    auto status = read_event(in, reader, hasher, event, rewrite);
    if (!status) {
      return std::unexpected(
          std::move(status).error().with_context(fmt::format("event {}", event.seq)));
    }
    opened.head = event.hash;
  }
  const bool ends = in.left() == kHashSize;
  if (!ends || hash_of(in.bytes(kHashSize)) != opened.head) {
    return corrupt(fmt::format("events {} to {}: the hash chain does not end as it was sealed",
                               opened.first_seq, opened.last_seq));
  }
  return opened;
}

}  // namespace

Result<OpenedBatch> open(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                         const BlobSource& blobs, const ValueLookup& lookup) {
  return read_batch(job, bytes, prev_hash, blobs, lookup, nullptr);
}

Result<Hash> head_of(std::string_view bytes) {
  if (bytes.size() < kHashSize) return corrupt("the batch ends too early");
  return hash_of(bytes.substr(bytes.size() - kHashSize));
}

Result<std::string> redact(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                           const BlobSource& blobs, const RedactFilter& drop,
                           const RetainFilter& retained_value) {
  std::string events;
  const Rewrite rewrite = [&](const Event& event, const BodyReader& reader, std::string_view body) {
    std::string rewritten;
    std::size_t copied = 0;
    for (const ValueSpan& span : reader.value_spans()) {
      if (!drop(event, span.field)) continue;
      rewritten += body.substr(copied, span.begin - copied);
      rewritten += span.redacted_bytes;
      if (const Value retained = retained_value ? retained_value(event, span.field) : Value();
          retained.is_object()) {
        const EventKind* const kind = event_kind(event.type);
        const auto field = std::ranges::find(kind->fields, span.field, &Field::name);
        AE_CHECK(field != kind->fields.end() && may_retain_value(event.type, field->name),
                 span.field);
        rewritten[rewritten.size() - span.redacted_bytes.size()] =
            static_cast<char>(kRetained << kFormShift | field->number);
        put_text(canonical(retained), rewritten);
      }
      copied = span.end;
    }
    rewritten += body.substr(copied);
    put_byte(static_cast<std::uint8_t>(event.type), events);
    put_byte(event.schema, events);
    put_text(rewritten, events);
  };
  AE_TRY(read_batch(job, bytes, prev_hash, blobs, {}, &rewrite));
  ByteReader in(bytes);
  AE_TRY(read_header(in));
  std::string out(bytes.substr(0, bytes.size() - in.left()));
  out += events;
  out += bytes.substr(bytes.size() - kHashSize);
  return out;
}

}  // namespace ae
