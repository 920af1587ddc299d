#include "textflag.h"

// func Lines(addr uintptr)
TEXT ·Lines(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ addr+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	RET
