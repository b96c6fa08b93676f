// Resolving secrets, and scrubbing them from what is stored or shown.
#include "tools/secrets.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <bitset>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/hash.h"
#include "base/utf8.h"
#include "json/json.h"
#include "tools/unescaped_views.h"

namespace ae::tools {
namespace {

constexpr std::size_t kSecretMax = 64u << 10;      // bytes of one secret
constexpr std::size_t kSecretsFileMax = 1u << 20;  // bytes of the secrets file
constexpr std::size_t kPendingMax = 1u << 10;      // bytes that a stream holds back, in addition to
constexpr std::size_t kPendingShapesMax = 48;  // this many shapes; `\u005cu0041` is one character
constexpr std::size_t kBase64TailMax =
    4u << 10;  // longer values are hidden in base64 without their last character
constexpr std::size_t kBucketsMin = 256, kBucketsMax = 1u << 16;  // of a ScrubTable
constexpr std::size_t kValuesPerSecretMax = 8;  // kept per name when a secret changes
constexpr std::string_view kMarker = "secret:";

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

class File {
 public:
  explicit File(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

  // The whole content; nullopt if it cannot be read or is larger than `most` bytes.
  std::optional<std::string> read_all(std::size_t most) const {
    std::string text(most + 1, '\0');
    std::size_t have = 0;
    while (have < text.size()) {
      const ssize_t n = ::read(fd_, text.data() + have, text.size() - have);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return std::nullopt;
      if (n == 0) break;
      have += static_cast<std::size_t>(n);
    }
    if (have > most) return std::nullopt;
    std::string exact = text.substr(0, have);
    ::explicit_bzero(text.data(), text.size());
    return exact;
  }

 private:
  int fd_;
};

std::unexpected<Error> missing(std::string_view name, const std::string& file) {
  std::string n(name);
  return fail(Code::secret_missing,
              "the secret " + n + " is missing: set the environment variable " + n + ", or " + n +
                  "_FILE to the path of a file that holds it, or write the line " + n + "=… into " +
                  (file.empty() ? std::string("a secrets file") : "the secrets file " + file) +
                  " (mode 0600)");
}

// ---- the encodings in which a value may occur

std::string upper_hex(std::string hex) {
  for (char& h : hex) h = h >= 'a' ? static_cast<char>(h - 'a' + 'A') : h;
  return hex;
}

std::string percent_encoded(std::string_view value, bool upper) {
  std::string out;
  for (const char c : value) {
    if (is_word(c) || c == '-' || c == '.' || c == '~') {
      out += c;
      continue;
    }
    const std::string hex = to_hex(std::string_view(&c, 1));
    out += "%" + (upper ? upper_hex(hex) : hex);
  }
  return out;
}

// "%41%42": for encoders that escape every character.
std::string percent_encoded_wholly(std::string_view value, bool upper) {
  std::string out;
  for (const char c : value) {
    const std::string hex = to_hex(std::string_view(&c, 1));
    out += "%" + (upper ? upper_hex(hex) : hex);
  }
  return out;
}

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::string_view kBase64Url =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// `core` with each possible last character: it encodes the last bits of `value` and the first bits
// of what follows, or zeros.
std::vector<std::string> base64_with_tails(const std::string& core, std::string_view value,
                                           std::size_t before, bool url) {
  std::vector<std::string> all;
  const std::size_t bits = (before * 8 + value.size() * 8) % 6;
  if (bits == 0 || value.size() > kBase64TailMax) return all;
  const unsigned last = static_cast<unsigned char>(value.back()) & ((1u << bits) - 1);
  for (unsigned behind = 0; behind < (1u << (6 - bits)); ++behind) {
    all.push_back(core + (url ? kBase64Url : kBase64)[last << (6 - bits) | behind]);
  }
  return all;
}

// The base64 characters that depend only on `value` when `before` bytes (mod 3) precede it.
std::string base64_core(std::string_view value, std::size_t before, bool url) {
  const std::string_view alphabet = url ? kBase64Url : kBase64;
  const std::size_t begin = before * 8, end = begin + value.size() * 8;
  std::string out;
  for (std::size_t bit = (begin + 5) / 6 * 6; bit + 6 <= end; bit += 6) {
    unsigned index = 0;
    for (std::size_t b = bit - begin; b < bit - begin + 6; ++b) {
      index = index << 1 | (static_cast<unsigned char>(value[b / 8]) >> (7 - b % 8) & 1u);
    }
    out += alphabet[index];
  }
  return out;
}

std::string json_string(std::string_view value) {
  std::string quoted;
  write_canonical_string(value, quoted);
  return quoted.substr(1, quoted.size() - 2);
}

struct Shape {
  std::string_view text, name;
  bool has_variable_tail = false;  // the last character is one of the base64_with_tails
};

// Longest first, so that a shape is not split by a shorter one that it contains. Borrows the names
// from `secrets` and the texts from `kept`.
std::vector<Shape> make_shapes(const std::vector<UsedSecret>& secrets, std::deque<Secret>& kept) {
  std::vector<Shape> shapes;
  for (const UsedSecret& secret : secrets) {
    const std::string_view value = secret.value.reveal();
    std::vector<std::string> texts, has_variable_tail;
    texts.emplace_back(value);
    texts.push_back(percent_encoded(value, true));
    texts.push_back(percent_encoded(value, false));
    texts.push_back(percent_encoded_wholly(value, true));
    texts.push_back(percent_encoded_wholly(value, false));
    texts.push_back(to_hex(value));
    texts.push_back(upper_hex(to_hex(value)));
    if (is_utf8(value)) {
      texts.push_back(json_string(value));
      texts.push_back(json_string(texts.back()));  // JSON inside a JSON string
    }
    for (const bool url : {false, true}) {
      for (std::size_t before = 0; before < 3; ++before) {
        texts.push_back(base64_core(value, before, url));
        if (texts.back().size() < kSecretHiddenMin) continue;
        for (std::string& text : base64_with_tails(texts.back(), value, before, url)) {
          has_variable_tail.push_back(std::move(text));
        }
      }
    }
    for (auto* list : {&texts, &has_variable_tail}) {
      std::ranges::sort(*list);
      const auto twins = std::ranges::unique(*list);
      list->erase(twins.begin(), twins.end());
      for (std::string& text : *list) {
        if (text.size() >= kSecretHiddenMin) {
          shapes.push_back(
              {kept.emplace_back(text).reveal(), secret.name, list == &has_variable_tail});
        }
        ::explicit_bzero(text.data(), text.size());
      }
    }
  }
  std::ranges::sort(shapes, [](const Shape& a, const Shape& b) {
    if (a.text.size() != b.text.size()) return a.text.size() > b.text.size();
    return std::tie(a.text, a.has_variable_tail, a.name) <
           std::tie(b.text, b.has_variable_tail, b.name);
  });
  // A text that two secrets share is kept once.
  const auto twins = std::ranges::unique(shapes, {}, &Shape::text);
  shapes.erase(twins.begin(), twins.end());
  return shapes;
}

// The secrets long enough to hide, deduplicated and sorted.
std::vector<const UsedSecret*> secrets_to_hide(const std::vector<UsedSecret>& used) {
  std::vector<const UsedSecret*> hidden;
  for (const UsedSecret& one : used) {
    if (one.value.reveal().size() >= kSecretHiddenMin) hidden.push_back(&one);
  }
  const auto parts = [](const UsedSecret* s) {
    return std::pair(std::string_view(s->name), s->value.reveal());
  };
  std::ranges::sort(hidden, {}, parts);
  const auto twins = std::ranges::unique(hidden, {}, parts);
  hidden.erase(twins.begin(), twins.end());
  return hidden;
}

std::vector<UsedSecret> copy_secrets(const std::vector<const UsedSecret*>& secrets) {
  std::vector<UsedSecret> copies;
  copies.reserve(secrets.size());
  for (const UsedSecret* one : secrets) copies.push_back(*one);
  return copies;
}

}  // namespace

// An index of the shapes of a set of secrets, for fast search. Immutable; threads: any.
class ScrubTable {
 public:
  explicit ScrubTable(const std::vector<UsedSecret>& used);
  ScrubTable(const ScrubTable&) = delete;
  ScrubTable& operator=(const ScrubTable&) = delete;

  // Is this the table of these secrets?
  bool is_table_of(const std::vector<UsedSecret>& used) const;
  // Longest first.
  const std::vector<Shape>& shapes() const { return shapes_; }
  // The shapes that occur in a text, in the order of shapes(); one pass over the text.
  std::vector<const Shape*> find_in(std::string_view text) const;
  // Is this text a proper prefix of a shape? REQUIRES: text is not empty.
  bool may_continue(std::string_view text) const;

 private:
  // By the first four bytes, which every shape has.
  static_assert(kSecretHiddenMin >= sizeof(std::uint32_t));
  // REQUIRES: text has four bytes.
  std::size_t bucket(std::string_view text) const {
    std::uint32_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    return (word * 2'654'435'761u) >> bucket_shift_;
  }
  std::string_view text(std::uint32_t shape) const { return shapes_[shape].text; }

  const std::vector<UsedSecret> secrets_;
  std::deque<Secret> texts_;  // of the shapes
  const std::vector<Shape> shapes_;
  std::vector<std::uint32_t> sorted_;  // indexes of the shapes, sorted by text
  std::bitset<256> first_bytes_;       // of all shapes
  // Bucket i holds by_bucket_[bucket_ends_[i]] to by_bucket_[bucket_ends_[i + 1] - 1].
  unsigned bucket_shift_;
  std::vector<std::uint32_t> bucket_ends_, by_bucket_;
};

ScrubTable::ScrubTable(const std::vector<UsedSecret>& used)
    : secrets_(copy_secrets(secrets_to_hide(used))), shapes_(make_shapes(secrets_, texts_)) {
  // Sparse buckets: most positions of a text need no comparison with a shape.
  const std::size_t wanted = std::clamp(shapes_.size() * 16, kBucketsMin, kBucketsMax);
  const unsigned bits = static_cast<unsigned>(std::bit_width(std::bit_ceil(wanted))) - 1;
  bucket_shift_ = 32 - bits;
  bucket_ends_.resize((std::size_t{1} << bits) + 1);
  for (std::uint32_t i = 0; i < shapes_.size(); ++i) {
    sorted_.push_back(i);
    first_bytes_.set(static_cast<unsigned char>(text(i).front()));
    ++bucket_ends_[bucket(text(i))];
  }
  std::ranges::sort(sorted_, {}, [this](std::uint32_t i) { return text(i); });
  std::partial_sum(bucket_ends_.begin(), bucket_ends_.end(), bucket_ends_.begin());
  by_bucket_.resize(shapes_.size());
  for (std::uint32_t i = 0; i < shapes_.size(); ++i) {
    by_bucket_[--bucket_ends_[bucket(text(i))]] = i;
  }
}

bool ScrubTable::is_table_of(const std::vector<UsedSecret>& used) const {
  return std::ranges::equal(secrets_, secrets_to_hide(used),
                            [](const UsedSecret& a, const UsedSecret* b) {
                              return a.name == b->name && a.value.reveal() == b->value.reveal();
                            });
}

std::vector<const Shape*> ScrubTable::find_in(std::string_view whole) const {
  std::vector<const Shape*> found;
  if (shapes_.empty() || whole.size() < kSecretHiddenMin) return found;
  std::vector<bool> seen;
  const std::size_t last = whole.size() - kSecretHiddenMin;
  for (std::size_t at = 0; at <= last; ++at) {
    const std::size_t b = bucket(whole.substr(at));
    for (std::uint32_t i = bucket_ends_[b]; i < bucket_ends_[b + 1]; ++i) {
      const std::uint32_t shape = by_bucket_[i];
      if ((!seen.empty() && seen[shape]) || !whole.substr(at).starts_with(text(shape))) continue;
      seen.resize(shapes_.size());
      seen[shape] = true;
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i]) found.push_back(&shapes_[i]);
  }
  return found;
}

bool ScrubTable::may_continue(std::string_view prefix) const {
  if (!first_bytes_[static_cast<unsigned char>(prefix.front())]) return false;
  // Texts with this prefix are adjacent, and `prefix` itself sorts before the longer ones.
  const auto next =
      std::ranges::upper_bound(sorted_, prefix, {}, [this](std::uint32_t i) { return text(i); });
  return next != sorted_.end() && text(*next).starts_with(prefix);
}

namespace {

std::string placeholder_for(const Shape& shape) {
  return "[secret " + std::string(shape.name) + "]";
}

struct SecretMatch {
  UnescapedViews::Span span;
  const Shape* shape;
};

// The matches of values that are spelled with escapes, on every level.
std::vector<SecretMatch> find_escaped(const UnescapedViews& views, const ScrubTable& table) {
  std::vector<SecretMatch> found;
  for (std::size_t level = 1; level <= views.levels(); ++level) {
    const std::string_view text = views.text(level);
    for (const Shape* shape : table.find_in(text)) {
      const std::string_view value = shape->text;
      for (std::size_t at = 0; (at = text.find(value, at)) != text.npos; at += value.size()) {
        found.push_back({views.to_source(level, {at, at + value.size()}), shape});
      }
    }
  }
  // At the same position the longest match first: its name is used.
  std::ranges::sort(found, [](const SecretMatch& a, const SecretMatch& b) {
    return std::pair(a.span.begin, b.span.end) < std::pair(b.span.begin, a.span.end);
  });
  return found;
}

std::string scrub_escaped(std::string text, const ScrubTable& table) {
  const UnescapedViews views(text, UnescapedViews::Continuation::nothing);
  if (views.levels() == 0) return text;
  std::string out;
  std::size_t done = 0;
  for (const SecretMatch& one : find_escaped(views, table)) {
    if (one.span.begin >= done) {
      out += std::string_view(text).substr(done, one.span.begin - done);
      out += placeholder_for(*one.shape);
    }
    done = std::max(done, one.span.end);
  }
  if (done == 0) return text;
  return out + text.substr(done);
}

std::string scrub_shapes(std::string_view text, const ScrubTable& table) {
  std::string out(text);
  for (const Shape* shape : table.find_in(text)) {
    const std::string instead = placeholder_for(*shape);
    for (std::size_t at = 0; (at = out.find(shape->text, at)) != std::string::npos;) {
      out.replace(at, shape->text.size(), instead);
      at += instead.size();
    }
  }
  return scrub_escaped(std::move(out), table);
}

Value scrub_shapes_in(const Value& value, const ScrubTable& table) {
  switch (value.kind()) {
    case Value::Kind::string: {
      std::string clean = scrub_shapes(value.as_string(), table);
      return clean == value.as_string() ? value : Value(std::move(clean));
    }
    case Value::Kind::array: {
      std::vector<Value> items;
      items.reserve(value.size());
      for (const Value& item : value.items()) items.push_back(scrub_shapes_in(item, table));
      return Value::array(std::move(items));
    }
    case Value::Kind::object: {
      std::map<std::string, Value> clean;  // scrubbing may make two keys equal
      for (const auto& [key, member] : value.members()) {
        clean.insert_or_assign(scrub_shapes(key, table), scrub_shapes_in(member, table));
      }
      return Value::object(std::vector<Member>(clean.begin(), clean.end()));
    }
    default:
      return value;
  }
}

}  // namespace

void Secret::wipe() noexcept {
  value_.resize(value_.capacity());  // a moved-from string may leave bytes beyond its size
  ::explicit_bzero(value_.data(), value_.size());
  value_.clear();
}

Result<Secret> EnvironmentSecrets::get(std::string_view name) {
  auto secret = find(name);
  if (!secret) return secret;
  const std::lock_guard lock(mutex_);
  const auto is_same = [&](const UsedSecret& one) {
    return one.name == name && one.value.reveal() == secret->reveal();
  };
  if (std::ranges::any_of(known_, is_same)) return secret;
  const auto same_name = [&](const UsedSecret& one) { return one.name == name; };
  if (std::ranges::count_if(known_, same_name) >=
      static_cast<std::ptrdiff_t>(kValuesPerSecretMax)) {
    known_.erase(std::ranges::find_if(known_, same_name));
  }
  known_.push_back({std::string(name), *secret});
  return secret;
}

void EnvironmentSecrets::add_known(std::vector<UsedSecret>& used) const {
  const std::lock_guard lock(mutex_);
  for (const UsedSecret& one : known_) {
    const auto is_same = [&](const UsedSecret& other) {
      return other.name == one.name && other.value.reveal() == one.value.reveal();
    };
    if (std::ranges::none_of(used, is_same)) used.push_back(one);
  }
}

Result<Secret> EnvironmentSecrets::find(std::string_view name) const {
  const bool is_name = !name.empty() && name.size() <= 256 && std::ranges::all_of(name, is_word) &&
                       (name[0] < '0' || name[0] > '9');
  if (!is_name) {
    return fail(Code::input_invalid,
                "a secret's name is made of letters, digits and _, as an environment variable's");
  }
  const std::string variable(name);
  if (const char* value = std::getenv(variable.c_str()); value != nullptr && *value != '\0') {
    if (std::strlen(value) > kSecretMax) {
      return fail(Code::payload_too_large, "the secret " + variable + " is longer than 64 KiB");
    }
    return Secret(value);
  }
  const char* path = std::getenv((variable + "_FILE").c_str());
  if (path == nullptr || *path == '\0') return from_secrets_file(name);

  const File file(path);
  if (file.fd() < 0) {
    return fail(Code::secret_missing,
                "the secret " + variable + " should be in the file " + path + " (" + variable +
                    "_FILE), which cannot be opened: " + std::strerror(errno));
  }
  std::optional<std::string> text = file.read_all(kSecretMax);
  if (!text) {
    return fail(Code::secret_missing, "the secret " + variable + " should be in the file " + path +
                                          ", which cannot be read or is longer than 64 KiB");
  }
  if (text->ends_with('\n')) text->pop_back();
  if (text->ends_with('\r')) text->pop_back();
  if (text->empty()) return missing(name, file_);
  return Secret(std::move(*text));
}

Result<Secret> EnvironmentSecrets::from_secrets_file(std::string_view name) const {
  if (file_.empty()) return missing(name, file_);
  const File file(file_);
  if (file.fd() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return missing(name, file_);
    return fail(Code::forbidden,
                "the secrets file " + file_ + " cannot be opened: " + std::strerror(errno));
  }
  struct stat status{};
  if (::fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(Code::forbidden, "the secrets file " + file_ + " is not a regular file");
  }
  if (status.st_uid != ::geteuid()) {
    return fail(Code::forbidden,
                "the secrets file " + file_ +
                    " belongs to another user: chown it to the user that runs this process");
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return fail(Code::forbidden,
                "the secrets file " + file_ + " is accessible to other users: chmod 600 " + file_);
  }
  std::optional<std::string> text = file.read_all(kSecretsFileMax);
  if (!text)
    return fail(Code::forbidden,
                "the secrets file " + file_ + " cannot be read or is longer than 1 MiB");
  const Secret whole(std::move(*text));  // wiped on destruction
  std::string_view rest = whole.reveal();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == '=') {
      const std::string_view value = line.substr(name.size() + 1);
      if (value.empty()) break;
      if (value.size() > kSecretMax) {
        return fail(Code::payload_too_large,
                    "the secret " + std::string(name) + " is longer than 64 KiB");
      }
      return Secret(std::string(value));
    }
  }
  return missing(name, file_);
}

Result<Secret> replace_secrets(std::string_view text, SecretSource& source,
                               std::vector<UsedSecret>& used) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(kMarker, at)) != std::string_view::npos;) {
    std::size_t end = at + kMarker.size();
    while (end < text.size() && is_word(text[end])) ++end;
    const std::string_view name = text.substr(at + kMarker.size(), end - at - kMarker.size());
    if (name.empty() || (at > 0 && is_word(text[at - 1]))) {
      at = end;
      continue;
    }
    auto secret = source.get(name);
    if (!secret) {
      ::explicit_bzero(out.data(), out.size());
      return std::unexpected(std::move(secret).error());
    }
    out += text.substr(done, at - done);
    out += secret->reveal();
    used.push_back({std::string(name), *std::move(secret)});
    at = done = end;
  }
  out += text.substr(done);
  Secret replaced(out);
  ::explicit_bzero(out.data(), out.size());
  return replaced;
}

std::string scrub(std::string_view text, const std::vector<UsedSecret>& used) {
  if (used.empty()) return std::string(text);
  return scrub_shapes(text, ScrubTable(used));
}

Value scrub_value(const Value& value, const std::vector<UsedSecret>& used) {
  if (used.empty()) return value;
  return scrub_shapes_in(value, ScrubTable(used));
}

std::string scrub_tail(std::string_view tail, const std::vector<UsedSecret>& used) {
  if (used.empty()) return std::string(tail);
  const ScrubTable table(used);
  std::size_t cut = 0;
  for (const Shape& shape : table.shapes()) {
    const std::string_view value = shape.text;
    // A variable last character alone reveals nothing.
    for (std::size_t begin = 1; begin + (shape.has_variable_tail ? 1 : 0) < value.size(); ++begin) {
      const std::string_view end_of_value = value.substr(begin);
      if (tail.starts_with(end_of_value)) {
        cut = std::max(cut, end_of_value.size());
        break;
      }
    }
  }
  return scrub_shapes(tail.substr(cut), table);
}

std::shared_ptr<const ScrubTable> SecretSource::scrub_table(const std::vector<UsedSecret>& used) {
  auto table = std::make_shared<const ScrubTable>(used);
  return table->shapes().empty() ? nullptr : table;
}

std::shared_ptr<const ScrubTable> EnvironmentSecrets::scrub_table(
    const std::vector<UsedSecret>& used) {
  const std::lock_guard lock(mutex_);
  if (!newest_table_ || !newest_table_->is_table_of(used))
    newest_table_ = SecretSource::scrub_table(used);
  return newest_table_;
}

ScrubbedStream::ScrubbedStream(std::shared_ptr<const ScrubTable> table)
    : table_(std::move(table)) {}
ScrubbedStream::ScrubbedStream(const std::vector<UsedSecret>& used)
    : table_(SecretNames().scrub_table(used)) {}
ScrubbedStream::~ScrubbedStream() { ::explicit_bzero(pending_.data(), pending_.size()); }
ScrubbedStream::ScrubbedStream(ScrubbedStream&&) noexcept = default;
ScrubbedStream& ScrubbedStream::operator=(ScrubbedStream&&) noexcept = default;

// The first position, on any level, at which an unfinished value may begin.
std::size_t ScrubbedStream::first_incomplete(const UnescapedViews& views) const {
  const std::size_t longest = table_->shapes().front().text.size();
  std::size_t cut = views.complete_to();
  for (std::size_t level = 0; level <= views.levels(); ++level) {
    const std::string_view text = views.text(level);
    const auto may_begin = [&](std::size_t at) { return table_->may_continue(text.substr(at)); };
    std::size_t at = text.size() < longest ? 0 : text.size() - longest + 1;
    while (at < text.size() && !may_begin(at)) ++at;
    if (at < text.size()) cut = std::min(cut, views.to_source(level, {at, at}).begin);
  }
  return cut;
}

// The last position at or before `cut` that is not inside a complete value, a character or an
// escape.
std::size_t ScrubbedStream::boundary_outside_matches(const UnescapedViews& views,
                                                     std::size_t cut) const {
  const std::string_view all = views.text(0);
  std::vector<std::vector<const Shape*>> matches_by_level;
  for (std::size_t level = 0; level <= views.levels(); ++level) {
    matches_by_level.push_back(table_->find_in(views.text(level)));
  }
  for (std::size_t before = cut + 1; cut < before;) {
    before = cut;
    while (cut > 0 && cut < all.size() && (static_cast<unsigned char>(all[cut]) & 0xC0) == 0x80) {
      --cut;
    }
    for (std::size_t level = 0; level <= views.levels(); ++level) {
      const std::string_view text = views.text(level);
      cut = views.boundary_at_or_before(cut);
      for (const Shape* shape : matches_by_level[level]) {
        cut = views.boundary_at_or_before(cut);
        const std::size_t position = views.to_level(level, cut);
        const std::string_view value = shape->text;
        const std::size_t first = position < value.size() ? 0 : position - value.size() + 1;
        const std::size_t behind =
            text.substr(first, position - first + value.size() - 1).find(value);
        if (behind == text.npos) continue;
        const std::size_t at = first + behind;
        cut = views.to_source(level, {at, at}).begin;
      }
    }
  }
  return cut;
}

std::string ScrubbedStream::feed(std::string_view text) {
  if (!table_) return std::string(text);
  pending_ += text;
  std::size_t cut = 0;
  {
    const UnescapedViews views(pending_, UnescapedViews::Continuation::more);
    cut = boundary_outside_matches(views, first_incomplete(views));
  }
  std::string clean = scrub_shapes(std::string_view(pending_).substr(0, cut), *table_);
  const Shape& longest = table_->shapes().front();
  if (pending_.size() - cut > kPendingMax + kPendingShapesMax * longest.text.size()) {
    // An endless sequence of overlapping values: replaced as a whole.
    clean += placeholder_for(longest);
    cut = pending_.size();
  }
  pending_.erase(0, cut);
  return clean;
}

std::string ScrubbedStream::end() {
  if (!table_) return {};
  std::string clean = scrub_shapes(pending_, *table_);
  ::explicit_bzero(pending_.data(), pending_.size());
  pending_.clear();
  return clean;
}

}  // namespace ae::tools
