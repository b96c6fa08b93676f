#include "store/postgres/rows.h"

#include <libpq-fe.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace ae::store::postgres {

Rows::~Rows() { PQclear(result_); }
int Rows::size() const { return PQntuples(result_); }
bool Rows::is_null(int row, int column) const { return PQgetisnull(result_, row, column) != 0; }
std::string_view Rows::bytes(int row, int column) const {
  return {PQgetvalue(result_, row, column),
          static_cast<std::size_t>(PQgetlength(result_, row, column))};
}
bool Rows::boolean(int row, int column) const {
  const std::string_view value = bytes(row, column);
  AE_CHECK(value.size() == 1);
  return value[0] != 0;
}
std::int64_t Rows::integer(int row, int column) const {
  const std::string_view value = bytes(row, column);
  AE_CHECK(value.size() == 8, "not an int8");
  std::uint64_t number = 0;
  for (const char byte : value) number = number << 8 | static_cast<unsigned char>(byte);
  return static_cast<std::int64_t>(number);
}
Hash Rows::hash(int row, int column) const {
  Hash hash;
  const std::string_view value = bytes(row, column);
  std::memcpy(hash.bytes.data(), value.data(), std::min(value.size(), hash.bytes.size()));
  return hash;
}
std::optional<Instant> Rows::maybe_instant(int row, int column) const {
  if (is_null(row, column)) return std::nullopt;
  return instant(row, column);
}

}  // namespace ae::store::postgres
