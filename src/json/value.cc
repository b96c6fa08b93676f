// Values are reference-counted nodes that never change once they are shared; copying increments the
// count.
#include "json/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace ae {

namespace {

// Sums up the extent of a container from those of its direct children.
class Extents {
 public:
  void add(const Value& child) {
    const Value::Extent e = child.extent();
    values_ += e.values;
    bytes_ += std::uint64_t{e.bytes} + 1;  // the comma; the last one counts for a bracket
    depth_ = std::max(depth_, e.depth);
  }
  void add_key(std::size_t bytes) { bytes_ += bytes + 3; }
  Value::Extent of_container() const {
    return {.values = saturated(values_),
            .bytes = saturated(std::max<std::uint64_t>(bytes_, 2)),
            .depth = saturated(std::uint64_t{depth_} + 1)};
  }
  static std::uint32_t saturated(std::uint64_t n) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, Value::kExtentMax));
  }

 private:
  std::uint64_t values_ = 1;  // at most 2^32 children, each below 2^32
  std::uint64_t bytes_ = 1;
  std::uint32_t depth_ = 0;
};

}  // namespace

struct Value::StringNode : Node {
  explicit StringNode(std::string s) : text(std::move(s)) {
    extent.bytes = Extents::saturated(std::uint64_t{text.size()} + 2);
  }
  std::string text;
};
struct Value::ArrayNode : Node {
  explicit ArrayNode(std::vector<Value> v) : items(std::move(v)) {
    Extents sum;
    for (const Value& item : items) sum.add(item);
    extent = sum.of_container();
  }
  std::vector<Value> items;
};
struct Value::ObjectNode : Node {
  explicit ObjectNode(std::vector<Member> m) : members(std::move(m)) {
    Extents sum;
    for (const auto& [key, value] : members) {
      sum.add_key(key.size());
      sum.add(value);
    }
    extent = sum.of_container();
  }
  std::vector<Member> members;
};

namespace {

constinit const Value kNull{};
constexpr double kIntegerMax = 9007199254740991.0;  // 2^53−1
// Up to this size a linear search is faster than a binary one, because most keys differ in length.
constexpr std::size_t kLinearMax = 12;

bool member_less(const Member& a, const Member& b) noexcept { return key_less(a.first, b.first); }
bool member_below(const Member& a, std::string_view key) noexcept { return key_less(a.first, key); }

}  // namespace

bool key_less(std::string_view a, std::string_view b) noexcept {
  const std::size_t shared = std::min(a.size(), b.size());
  constexpr std::size_t kBlock = 64;
  std::size_t i = 0;
  while (i + kBlock <= shared && std::memcmp(a.data() + i, b.data() + i, kBlock) == 0) i += kBlock;
  while (i < shared && a[i] == b[i]) ++i;
  if (i == shared) return a.size() < b.size();
  const auto x = static_cast<unsigned char>(a[i]);
  const auto y = static_cast<unsigned char>(b[i]);
  // UTF-8 sorts by code point. UTF-16 does too, except that U+E000–U+FFFF (lead bytes EE and EF)
  // sort after the surrogates, which encode everything from U+10000 (lead bytes F0–F4).
  if (x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0)) return x >= 0xF0;
  return x < y;
}

Value::Value(bool b) noexcept : kind_(Kind::boolean) { bits_.boolean = b; }

Value::Value(double d) noexcept : kind_(Kind::number) {
  AE_CHECK(std::isfinite(d));
  bits_.number = d + 0.0;  // −0 becomes 0
}

Value::Value(std::string s) : kind_(Kind::string) { bits_.node = new StringNode(std::move(s)); }

// Releases the node but keeps the kind. Destroys nested values in a loop, so that depth uses no
// stack.
void Value::drop() noexcept {
  const auto last_owner = [](const Value& v) {
    return v.kind_ >= Kind::string &&
           v.bits_.node->owners.fetch_sub(1, std::memory_order_acq_rel) == 1;
  };
  if (!last_owner(*this)) return;
  if (kind_ == Kind::string) {
    delete static_cast<StringNode*>(bits_.node);
    return;
  }
  struct Dead {
    Node* arrays = nullptr;
    Node* objects = nullptr;
  } dead;
  const auto push_dead = [](Node*& list, Node* node) {
    node->next_dead = list;
    list = node;
  };
  const auto drop_child = [&](Value& child) {
    if (last_owner(child)) {
      if (child.kind_ == Kind::string) delete static_cast<StringNode*>(child.bits_.node);
      if (child.kind_ == Kind::array) push_dead(dead.arrays, child.bits_.node);
      if (child.kind_ == Kind::object) push_dead(dead.objects, child.bits_.node);
    }
    child.kind_ = Kind::null;
  };
  push_dead(kind_ == Kind::array ? dead.arrays : dead.objects, bits_.node);
  while (dead.arrays != nullptr || dead.objects != nullptr) {
    if (dead.arrays != nullptr) {
      auto* node = static_cast<ArrayNode*>(std::exchange(dead.arrays, dead.arrays->next_dead));
      for (Value& item : node->items) drop_child(item);
      delete node;
    } else {
      auto* node = static_cast<ObjectNode*>(std::exchange(dead.objects, dead.objects->next_dead));
      for (Member& member : node->members) drop_child(member.second);
      delete node;
    }
  }
}

Value Value::array(std::vector<Value> items) {
  Value v;
  v.bits_.node = new ArrayNode(std::move(items));
  v.kind_ = Kind::array;
  return v;
}

Value Value::object(std::vector<Member> members) {
  const auto not_rising = [](const Member& a, const Member& b) { return !member_less(a, b); };
  if (std::ranges::adjacent_find(members, not_rising) != members.end()) {
    std::ranges::sort(members, member_less);
    for (std::size_t i = 1; i < members.size(); ++i) {
      AE_CHECK(members[i - 1].first != members[i].first, members[i].first);
    }
  }
  Value v;
  v.bits_.node = new ObjectNode(std::move(members));
  v.kind_ = Kind::object;
  return v;
}

Value Value::object(std::initializer_list<Member> members) {
  return object(std::vector<Member>(members));
}

bool Value::is_integer() const noexcept {
  return kind_ == Kind::number && std::fabs(bits_.number) <= kIntegerMax &&
         bits_.number == std::trunc(bits_.number);
}

bool Value::as_bool() const {
  AE_CHECK(is_bool());
  return bits_.boolean;
}

double Value::as_number() const {
  AE_CHECK(is_number());
  return bits_.number;
}

std::int64_t Value::as_int() const {
  AE_CHECK(is_integer());
  return static_cast<std::int64_t>(bits_.number);
}

const std::string& Value::as_string() const {
  AE_CHECK(is_string());
  return static_cast<const StringNode*>(bits_.node)->text;
}

std::span<const Value> Value::items() const {
  AE_CHECK(is_array());
  return static_cast<const ArrayNode*>(bits_.node)->items;
}

std::span<const Member> Value::members() const {
  AE_CHECK(is_object());
  return static_cast<const ObjectNode*>(bits_.node)->members;
}

const Value* Value::find(std::string_view key) const noexcept {
  if (kind_ != Kind::object) return nullptr;
  const auto& members = static_cast<const ObjectNode*>(bits_.node)->members;
  if (members.size() <= kLinearMax) {
    // Keys of equal length differ most often in their last byte.
    for (const Member& member : members) {
      const std::string& own = member.first;
      if (own.size() != key.size() || (!key.empty() && own.back() != key.back())) continue;
      if (own == key) return &member.second;
    }
    return nullptr;
  }
  const auto at = std::lower_bound(members.begin(), members.end(), key, member_below);
  return at != members.end() && at->first == key ? &at->second : nullptr;
}

const Value& Value::operator[](std::string_view key) const noexcept {
  const Value* found = find(key);
  return found != nullptr ? *found : kNull;
}

std::size_t Value::size() const noexcept {
  if (kind_ == Kind::array) return static_cast<const ArrayNode*>(bits_.node)->items.size();
  if (kind_ == Kind::object) return static_cast<const ObjectNode*>(bits_.node)->members.size();
  return 0;
}

std::string_view Value::text(std::string_view key, std::string_view otherwise) const noexcept {
  const Value* found = find(key);
  return found != nullptr && found->is_string() ? std::string_view(found->as_string()) : otherwise;
}

Value::Extent Value::extent() const noexcept {
  if (kind_ >= Kind::string) return bits_.node->extent;
  const bool number = kind_ == Kind::number;
  return {.values = 1, .bytes = number ? 1U : 4U, .depth = 0};
}

Value Value::with(std::string_view key, Value value) const {
  const auto old = members();
  const auto at = std::lower_bound(old.begin(), old.end(), key, member_below);
  std::vector<Member> members;
  members.reserve(old.size() + 1);
  members.insert(members.end(), old.begin(), at);
  members.emplace_back(std::string(key), std::move(value));
  const bool replaces = at != old.end() && at->first == key;
  members.insert(members.end(), replaces ? at + 1 : at, old.end());
  Value v;
  v.bits_.node = new ObjectNode(std::move(members));
  v.kind_ = Kind::object;
  return v;
}

bool operator==(const Value& a, const Value& b) {
  if (a.kind_ != b.kind_) return false;
  if (a.kind_ >= Value::Kind::string && a.bits_.node == b.bits_.node) return true;
  if (a.extent() != b.extent()) return false;
  switch (a.kind_) {
    case Value::Kind::null:
      return true;
    case Value::Kind::boolean:
      return a.bits_.boolean == b.bits_.boolean;
    case Value::Kind::number:
      return a.bits_.number == b.bits_.number;
    case Value::Kind::string:
      return a.as_string() == b.as_string();
    case Value::Kind::array:
      return std::ranges::equal(a.items(), b.items());
    case Value::Kind::object:
      return std::ranges::equal(a.members(), b.members());
  }
  return false;
}

}  // namespace ae
