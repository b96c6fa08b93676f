// The verifier's half of the stored form (drawn in seal.cc): any bytes become events or a refusal.
//
// Bytes are taken only in the one form that `seal` would write, and the chain is computed anew from what was read.
#include <algorithm>
#include <array>
#include <forward_list>
#include <utility>

#include "base/bytes.h"
#include "base/utf8.h"
#include "json/json.h"
#include "log/chain.h"
#include "log/request_cut.h"
#include "log/seal.h"
#include "log/sealed_form.h"
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

Hash hash_of(std::string_view bytes) {
  Hash hash;
  if (bytes.size() == hash.bytes.size()) std::ranges::copy(bytes, hash.bytes.begin());
  return hash;
}

Instant instant_of(std::uint64_t bits) { return {static_cast<std::int64_t>(bits)}; }

bool in_range(Instant t) { return t >= kInstantMin && t <= kInstantMax; }

// What stands once for all events of a batch.
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
    return fail(Code::needs_version, "a batch of format version " + std::to_string(version) +
                                         "; use a newer Aetheris to read it");
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

// A value field in the body of its event, and what stands there once the value is dropped.
struct ValuePlace {
  std::string field;
  std::size_t begin = 0, end = 0;
  std::string dropped;
};

// One member of a payload, read. Borrows from the body, the event table and the values kept apart.
struct Part {
  bool present = false;
  std::string_view name;
  Value shown;
  FieldKind kind = FieldKind::json;
  std::string_view text;  // canonical, of json
  Hash commitment;        // of a value, or of an error's message
  std::string_view salt;  // of the same; empty when it is redacted
  bool by_message = false;
  std::uint8_t form = 0;  // of an external key

  bool is_error() const { return kind == FieldKind::error; }
  bool is_value() const { return kind == FieldKind::value; }
  std::string value_name() const { return std::string(name).append(is_error() ? ".message" : ""); }
};

// Reads the bodies of events, one after the other: what it needs for one is used again for the next.
class BodyReader {
 public:
  BodyReader(const JobId& job, const BlobSource& blobs, const KnownValue& known, bool wants_places)
      : job_(job), blobs_(blobs), known_(known), wants_places_(wants_places) {}

  // Fills in payload, salts and unknown_name of the event. REQUIRES: a kind, unless it is narrative.
  Status read(const EventKind* kind, std::string_view body, Event& event) {
    size_ = body.size();
    in_ = ByteReader(body);
    parts_.clear();
    places_.clear();
    apart_.clear();
    const bool named = static_cast<std::uint8_t>(event.type) >= kNarrativeFrom;
    const bool known = kind != nullptr && event.schema <= kind->schema;
    AE_TRY(named ? read_named(kind, event) : read_numbered(*kind));
    if (!in_.ok()) return corrupt("its bytes end too early");
    AE_TRY(derive_external_key(event));

    std::vector<Member> payload;
    std::vector<Member> salts;
    payload.reserve(parts_.size());
    for (const Part& part : parts_) {
      if (!part.present) continue;
      payload.emplace_back(part.name, part.shown);
      if (!part.salt.empty()) salts.emplace_back(part.value_name(), to_hex(part.salt));
    }
    event.payload = Value::object(std::move(payload));
    if (!salts.empty()) event.salts = Value::object(std::move(salts));
    if (!known) return {};
    return named ? check_named(*kind, event) : check_numbered(*kind, event);
  }

  // Appends payload'.
  Status write_payload(std::string& out) const {
    const std::size_t start = out.size();
    char before = '{';
    for (const Part& part : parts_) {
      if (!part.present) continue;
      out += std::exchange(before, ',');
      write_canonical_string(part.name, out);
      out += ':';
      if (part.is_error()) {
        out += R"({"code":)";
        write_canonical(part.shown["code"], out);
        out += R"(,"message":)";
        write_commitment(part.commitment, out);
        out += '}';
      } else if (part.is_value()) {
        write_commitment(part.commitment, out);
      } else if (!part.text.empty()) {
        out += part.text;
      } else {
        write_canonical(part.shown, out);
      }
    }
    out += before == '{' ? "{}" : "}";
    if (!is_utf8(std::string_view(out).substr(start))) return corrupt("a text is not UTF-8");
    return {};
  }

  // The values that are still there, in the order of the bytes. REQUIRES: wants_places.
  const std::vector<ValuePlace>& places() const { return places_; }

 private:
  std::size_t at() const { return size_ - in_.left(); }

  // By rising number: form and number, then the content. Each part gets the place of its field.
  Status read_numbered(const EventKind& kind) {
    parts_.resize(kind.fields.size());
    int previous = 0;
    while (in_.left() > 0) {
      const std::size_t begin = at();
      const std::uint8_t head = in_.byte();
      const std::uint8_t number = head & kFieldNumberMax;
      const auto form = static_cast<std::uint8_t>(head >> kFormShift);
      const auto field = std::ranges::find(kind.fields, number, &Field::number);
      if (number <= previous) return corrupt("fields out of order");
      if (field == kind.fields.end()) {
        return corrupt("an unknown field, number " + std::to_string(number));
      }
      previous = number;
      Part& part = parts_[static_cast<std::size_t>(field - kind.fields.begin())];
      part.present = true;
      part.name = field->name;
      part.kind = field->kind;
      part.by_message = form == kByMessage && may_be_by_message(kind.type, *field);
      const bool left = form == kLeft && may_have_left(kind.type, *field);
      if (form > form_max(field->kind) && !part.by_message && !left) {
        return wrong(part, " has an unknown form");
      }
      AE_TRY(read_field(form, part));
      if (part.salt.empty() || !wants_places_) continue;
      std::string dropped;
      put_byte(static_cast<std::uint8_t>(kRedacted << kFormShift | number), dropped);
      if (part.is_error()) put_text(part.shown["code"].as_string(), dropped);
      note_place(part, begin, std::move(dropped));
    }
    return {};
  }

  // The type's name; then by rising key: the key, the form, the content.
  Status read_named(const EventKind* kind, Event& event) {
    const std::string_view type_name = in_.text();
    const bool own_name = kind != nullptr ? kind->name == type_name
                                          : !type_name.empty() && event_kind(type_name) == nullptr;
    if (!in_.ok() || !own_name || !is_utf8(type_name)) return corrupt("its type has another name");
    if (kind == nullptr) event.unknown_name = type_name;
    while (in_.left() > 0) {
      const std::size_t begin = at();
      const std::string_view key = in_.text();
      const std::uint8_t form = in_.byte();
      const auto kind_of_member = (form & kNamedValue) != 0 ? FieldKind::value : FieldKind::json;
      if (!parts_.empty() && !key_less(parts_.back().name, key))
        return corrupt("keys out of order");
      if (form > (kNamedValue | kRedacted) || form == kRedacted || form == 3) {
        return corrupt("a member has an unknown form");
      }
      Part& part = parts_.emplace_back(Part{.present = true, .name = key, .kind = kind_of_member});
      AE_TRY(read_field(form & 3, part));
      if (part.salt.empty() || !wants_places_) continue;
      std::string dropped;
      put_text(key, dropped);
      put_byte(kNamedValue | kRedacted, dropped);
      note_place(part, begin, std::move(dropped));
    }
    return {};
  }

  static int form_max(FieldKind kind) {
    if (kind == FieldKind::value || kind == FieldKind::error) return kRedacted;
    if (kind == FieldKind::external_key) return kOfChoice;
    return kind == FieldKind::json ? 1 : 0;
  }

  Status read_field(std::uint8_t form, Part& part) {
    switch (part.kind) {
      case FieldKind::text:
        part.shown = in_.text();
        return {};
      case FieldKind::word:
        return read_word(part);
      case FieldKind::id8:
        part.shown = to_hex(in_.bytes(8));
        return {};
      case FieldKind::hash32:
        part.shown = to_hex(in_.bytes(kHashSize));
        return {};
      case FieldKind::uuid:
        part.shown = to_text(uuid_of(in_.bytes(16)));
        return {};
      case FieldKind::integer: {
        const std::int64_t n = un_zig_zag(in_.varint());
        constexpr std::int64_t kMax = (std::int64_t{1} << 53) - 1;
        if (n < -kMax || n > kMax) return wrong(part, " is too large a number");
        part.shown = n;
        return {};
      }
      case FieldKind::boolean: {
        const std::uint8_t bit = in_.byte();
        if (bit > 1) return wrong(part, " is neither true nor false");
        part.shown = bit == 1;
        return {};
      }
      case FieldKind::instant: {
        const Instant t = instant_of(in_.big_endian64());
        if (!in_range(t)) return wrong(part, " is a time out of range");
        part.shown = to_text(t);
        return {};
      }
      case FieldKind::external_key:
        part.form = form;
        if (form == kSpelled) part.shown = in_.text();
        return {};  // the others wait for the fields that they follow from: derive_external_key
      case FieldKind::json: {
        AE_ASSIGN(const Content content, read_content(form));
        part.text = content.text;
        AE_ASSIGN(part.shown, read_json(content));
        return {};
      }
      case FieldKind::value:
        return read_value(form, part, part.shown);
      case FieldKind::error:
        return read_error(form, part);
    }
    return {};
  }

  Status read_word(Part& part) {
    const std::uint8_t number = in_.byte();
    if (number == 0) {
      const std::string_view text = in_.text();
      if (word_number(text) != 0) return wrong(part, " spells out a word of the list");
      part.shown = text;
      return {};
    }
    const std::string_view word = word_text(number);
    if (word.empty()) return wrong(part, " is a word that is not in the list");
    part.shown = word;
    return {};
  }

  Status read_error(std::uint8_t form, Part& part) {
    Value code(in_.text());
    Value message;
    AE_TRY(read_value(form, part, message));
    part.shown = Value::object({{"code", std::move(code)}, {"message", std::move(message)}});
    return {};
  }

  Status read_value(std::uint8_t form, Part& part, Value& shown) {
    if (form == kRedacted) {
      part.commitment = hash_of(in_.bytes(kHashSize));
      shown = Value::object({{"$redacted", to_hex(part.commitment)}});
      return {};
    }
    if (form == kLeft) {
      part.commitment = hash_of(in_.bytes(kHashSize));
      AE_ASSIGN(const Content content, read_content(kInline));
      AE_ASSIGN(Value left, read_json(content));
      if (!left.is_object())
        return wrong(part, " is erased, and what is left of it is not an object");
      shown = Value::object({{"$redacted", to_hex(part.commitment)}, {"left", std::move(left)}});
      return {};
    }
    part.salt = in_.bytes(kSaltSize);
    if (form == kByMessage) return read_request(part, shown);
    AE_ASSIGN(const Content content, read_content(form));
    AE_ASSIGN(shown, read_json(content));
    scratch_.assign(part.salt).append(content.text);
    part.commitment = commitment(scratch_);
    return {};
  }

  // What a model was asked, message by message.
  Status read_request(Part& part, Value& shown) {
    const std::string_view head = in_.text();
    const std::uint64_t count = in_.varint();
    if (count == 0 || count > in_.left()) return wrong(part, " has no messages");
    std::string salted(part.salt);
    salted += head;
    std::vector<std::size_t> sizes;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint8_t form = in_.byte();
      if (form > kApart) return corrupt("a message has an unknown form");
      AE_ASSIGN(const Content message, read_content(form));
      if (i > 0) salted += ',';
      salted += message.text;
      sizes.push_back(message.text.size());
    }
    salted += in_.text();
    if (!in_.ok()) return corrupt("its bytes end too early");
    const std::string_view text = std::string_view(salted).substr(part.salt.size());
    AE_ASSIGN(shown, read_json({text}));
    const auto cut = cut_request(shown, text);
    const auto same = [](std::string_view message, std::size_t size) {
      return message.size() == size;
    };
    if (!cut || cut->head.size() != head.size() ||
        !std::ranges::equal(cut->messages, sizes, same)) {
      return wrong(part, " is not cut at its messages");
    }
    part.commitment = commitment(salted);
    return {};
  }

  struct Content {
    std::string_view text;         // canonical
    const Value* known = nullptr;  // what it says, if the caller has it already
  };

  // The canonical text, which stands here or apart.
  Result<Content> read_content(std::uint8_t form) {
    if (form == kInline) return Content{in_.text()};
    const Hash hash = hash_of(in_.bytes(kHashSize));
    const std::uint64_t size = in_.varint();
    if (!in_.ok()) return corrupt("its bytes end too early");
    AE_ASSIGN(std::string blob, blobs_(hash));
    if (blob.size() != size || sha256(blob) != hash) {
      return corrupt("the value kept apart as " + to_hex(hash) + " is not what was stored");
    }
    return Content{apart_.emplace_front(std::move(blob)), known_ ? known_(hash) : nullptr};
  }

  Result<Value> read_json(const Content& content) {
    if (content.known != nullptr) return *content.known;
    constexpr JsonLimits kOwnText{
        .bytes_max = ~std::size_t{0}, .depth_max = kJsonDepthMax, .big_integers = true};
    auto value = parse_canonical(content.text, kOwnText);
    if (!value) return corrupt("a value is " + value.error().message);
    return value;
  }

  // An external key that was left out, now that the step it follows from is known.
  Status derive_external_key(const Event& event) {
    const auto key = std::ranges::find(parts_, FieldKind::external_key, &Part::kind);
    if (key == parts_.end()) return {};
    const auto step = std::ranges::find(parts_, "step_id", &Part::name);
    if (step == parts_.end()) return corrupt("step_id is missing");
    const auto own = std::ranges::find(parts_, "idempotency_key", &Part::name);
    if (own == parts_.end()) return corrupt("idempotency_key is missing");
    const std::string& step_id = step->shown.as_string();
    const std::string& own_key = own->shown.as_string();
    if (key->form != kSpelled) {
      key->shown = derived_external_key(key->form, job_, step_id, own_key, event.attempt_id);
    }
    const std::uint8_t form = external_key_form(event.schema, key->shown.as_string(), job_, step_id,
                                                own_key, event.attempt_id);
    if (form == key->form) return {};
    return wrong(*key, key->form == kSpelled ? " spells out a key that follows from the event"
                                             : " has another form than the writer's");
  }

  // What the table says, and that an absent member is absent and not null.
  Status check_named(const EventKind& kind, const Event& event) const {
    AE_TRY(check_payload(kind, event.payload));
    for (const Part& part : parts_) {
      const auto field = std::ranges::find(kind.fields, part.name, &Field::name);
      if (part.shown.is_null() && !takes_null(*field)) return wrong(part, " is null");
      if ((part.is_value() || part.is_error()) != holds_value(*field)) {
        return wrong(part, " is stored as another kind of field");
      }
    }
    return {};
  }

  // The same where the bytes were read by the table: texts, numbers, times and hashes have their form already.
  Status check_numbered(const EventKind& kind, const Event& event) const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      const Field& field = kind.fields[i];
      const bool null = part.shown.is_null() && !takes_null(field);
      if (part.is_error() || (field.required && (!part.present || null))) {
        AE_TRY(check_payload(kind, event.payload));
      }
      if (part.present && null) return wrong(part, " is null");
      if (part.by_message && !calls_model(event.payload)) {
        return wrong(part, " is stored by message, and asks no model");
      }
    }
    return {};
  }

  static std::unexpected<Error> wrong(const Part& part, std::string_view what) {
    return corrupt(std::string(part.name).append(what));
  }

  void note_place(const Part& part, std::size_t begin, std::string dropped) {
    dropped.append(reinterpret_cast<const char*>(part.commitment.bytes.data()), kHashSize);
    places_.push_back({part.value_name(), begin, at(), std::move(dropped)});
  }

  const JobId& job_;
  const BlobSource& blobs_;
  const KnownValue& known_;
  const bool wants_places_;
  std::size_t size_ = 0;
  ByteReader in_{{}};
  std::vector<Part> parts_;  // in canonical order of their names
  std::vector<ValuePlace> places_;
  std::forward_list<std::string> apart_;  // what stood apart
  std::string scratch_;
};

// Told of each event as it is read.
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
                "type " + std::to_string(number) + ", schema " + std::to_string(event.schema) +
                    ", is newer than this Aetheris; use the one that wrote it");
  }
  AE_TRY(reader.read(kind, body, event));
  hasher.begin(event);
  AE_TRY(reader.write_payload(hasher.text()));
  event.hash = hasher.finish();
  if (rewrite != nullptr) (*rewrite)(event, reader, body);
  return {};
}

Result<Opened> read_batch(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                          const BlobSource& blobs, const KnownValue& known,
                          const Rewrite* rewrite) {
  ByteReader in(bytes);
  AE_ASSIGN(const Header header, read_header(in));
  Opened opened;
  opened.first_seq = header.first_seq;
  opened.last_seq = header.first_seq + header.count - 1;
  opened.head = prev_hash;
  opened.events.reserve(
      std::min<std::size_t>(header.count, in.left() / 3));  // three bytes at least
  BodyReader reader(job, blobs, known, rewrite != nullptr);
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
      return std::unexpected(std::move(status).error().in("event " + std::to_string(event.seq)));
    }
    opened.head = event.hash;
  }
  const bool ends = in.left() == kHashSize;
  if (!ends || hash_of(in.bytes(kHashSize)) != opened.head) {
    return corrupt("events " + std::to_string(opened.first_seq) + " to " +
                   std::to_string(opened.last_seq) +
                   ": the hash chain does not end as it was sealed");
  }
  return opened;
}

}  // namespace

Result<Opened> open(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                    const BlobSource& blobs, const KnownValue& known) {
  return read_batch(job, bytes, prev_hash, blobs, known, nullptr);
}

Result<std::string> redact(const JobId& job, std::string_view bytes, const Hash& prev_hash,
                           const BlobSource& blobs, const DropValue& drop,
                           const LeftOver& left_of) {
  std::string events;
  const Rewrite rewrite = [&](const Event& event, const BodyReader& reader, std::string_view body) {
    std::string rewritten;
    std::size_t copied = 0;
    for (const ValuePlace& place : reader.places()) {
      if (!drop(event, place.field)) continue;
      rewritten += body.substr(copied, place.begin - copied);
      rewritten += place.dropped;
      if (const Value left = left_of ? left_of(event, place.field) : Value(); left.is_object()) {
        const EventKind* const kind = event_kind(event.type);
        const auto field = std::ranges::find(kind->fields, place.field, &Field::name);
        AE_CHECK(field != kind->fields.end() && may_have_left(event.type, *field), place.field);
        rewritten[rewritten.size() - place.dropped.size()] =
            static_cast<char>(kLeft << kFormShift | field->number);
        put_text(canonical(left), rewritten);
      }
      copied = place.end;
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
