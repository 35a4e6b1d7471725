// Everything a user of Quire includes. Public.
#pragma once
#include "quire/buffer.h"
#include "quire/cpu_info.h"
#include "quire/dtype.h"
#include "quire/error.h"
#include "quire/evaluate.h"
#include "quire/executor.h"
#include "quire/explain.h"
#include "quire/expr.h"
#include "quire/formula.h"
#include "quire/isa.h"
#include "quire/mod.h"
#include "quire/tensor.h"
