// define_records: includes records.def and decisions.def with macros that the includer defines,
// then undefines them. No include guard.
#ifndef AE_RECORD
#define AE_RECORD(Struct, name, ...)
#endif
#ifndef AE_DECISION
#define AE_DECISION(Struct, kind, states, schema, ...)
#endif
#ifndef AE_VALUE_DECISION
#define AE_VALUE_DECISION AE_DECISION
#endif
#ifndef AE_REQUIRED_AS
#define AE_REQUIRED_AS(kind, member, name, left, meaning)
#endif
#ifndef AE_OPTIONAL_AS
#define AE_OPTIONAL_AS(kind, member, name, left, meaning)
#endif
#define AE_REQUIRED(kind, name, left, meaning) AE_REQUIRED_AS(kind, name, #name, left, meaning)
#define AE_OPTIONAL(kind, name, left, meaning) AE_OPTIONAL_AS(kind, name, #name, left, meaning)
#include "log/decisions.def"
#include "log/records.def"
#undef AE_RECORD
#undef AE_DECISION
#undef AE_VALUE_DECISION
#undef AE_REQUIRED
#undef AE_OPTIONAL
#undef AE_REQUIRED_AS
#undef AE_OPTIONAL_AS
