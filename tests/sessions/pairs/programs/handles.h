unsigned long handles_slot(void);
void handles_drop(unsigned long slot);
int handles_number(unsigned long *number);
void handles_forget(unsigned long number);
